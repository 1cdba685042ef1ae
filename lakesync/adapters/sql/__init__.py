"""Adapters for SQL databases: the base class `SqlAdapter`, and what an adapter for one database implements.

The modules in `lakesync.adapters.backends`, and adapters in packages of others, import from here.
"""

from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.adapters.sql.backend import Column, Connection, Dialect, Executor, Kind, StatementError, Value, arrow_of

__all__ = ["Column", "Connection", "Dialect", "Executor", "Kind", "SqlAdapter", "StatementError", "Value", "arrow_of"]
