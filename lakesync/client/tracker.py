"""The reference's face of local writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lakesync.client.table import Row, Table


class Tracked(Protocol):
    """What has synced tables: a client, or `Tables`."""

    def __getitem__(self, table: str) -> Table:
        """A synced table."""

    def query(self, sql: str, params: Any = ...) -> list[Row]:
        """The rows that a query gives."""


class SyncTracker:
    """Insert, update, delete and query by table and row id; the same as `db[table]`."""

    def __init__(self, tables: Tracked) -> None:
        self._tables = tables

    def insert(self, table: str, row_id: str, data: Mapping[str, Any]) -> None:
        """Add a row."""
        self._tables[table].insert(data, row_id=row_id)

    def update(self, table: str, row_id: str, data: Mapping[str, Any]) -> None:
        """Change columns of a row."""
        self._tables[table].update(row_id, data)

    def delete(self, table: str, row_id: str) -> None:
        """Remove a row."""
        self._tables[table].delete(row_id)

    def query(self, sql: str, params: Any = ()) -> list[Row]:
        """The rows that a query gives."""
        return self._tables.query(sql, params)
