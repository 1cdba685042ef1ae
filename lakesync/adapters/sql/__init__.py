"""Adapters for SQL databases: one base class, and the interfaces for what differs between databases."""

from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.adapters.sql.dialect import Column, Dialect, Kind
from lakesync.adapters.sql.executor import Connection, Executor, StatementError, Value, arrow_of

__all__ = ["Column", "Connection", "Dialect", "Executor", "Kind", "SqlAdapter", "StatementError", "Value", "arrow_of"]
