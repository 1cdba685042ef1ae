"""Adapters for SQL databases: one base class, and the interfaces for what differs between databases."""

from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.adapters.sql.backend import Column, Connection, Dialect, Executor, Kind, StatementError, Value, arrow_of

__all__ = ["Column", "Connection", "Dialect", "Executor", "Kind", "SqlAdapter", "StatementError", "Value", "arrow_of"]
