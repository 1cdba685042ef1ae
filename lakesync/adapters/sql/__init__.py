"""Deltas, tables of rows and marks in a SQL database: one base, and what differs from database to database."""

from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.adapters.sql.dialect import Column, Dialect, Kind
from lakesync.adapters.sql.executor import Connection, Executor, Refusal, Value, arrow_of

__all__ = ["Column", "Connection", "Dialect", "Executor", "Kind", "Refusal", "SqlAdapter", "Value", "arrow_of"]
