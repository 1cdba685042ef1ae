"""The reference's face of local writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakesync.client.table import Row

if TYPE_CHECKING:
    from lakesync.client.client import Client


class SyncTracker:
    """Insert, update, delete and query by table and row id; the same as `db[table]`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def insert(self, table: str, row_id: str, data: Mapping[str, Any]) -> None:
        """Add a row."""
        self._client[table].insert(data, row_id=row_id)

    def update(self, table: str, row_id: str, data: Mapping[str, Any]) -> None:
        """Change columns of a row."""
        self._client[table].update(row_id, data)

    def delete(self, table: str, row_id: str) -> None:
        """Remove a row."""
        self._client[table].delete(row_id)

    def query(self, sql: str, params: Any = ()) -> list[Row]:
        """The rows that a query gives."""
        return self._client.query(sql, params)
