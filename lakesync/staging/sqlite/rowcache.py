"""Rows that were read or written of late, decoded."""

from __future__ import annotations

from lakesync.staging.records import StoredRow
from lakesync.types import RowKey


class RowCache:
    """Holds about so many bytes of rows as they are stored; what was asked for least recently goes first.

    Two generations: when the young one is full it becomes the old one, and the old one goes as a whole. What is asked
    for becomes young again.
    """

    def __init__(self, stored_bytes: int) -> None:
        self._allowed = stored_bytes // 2
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._young: dict[tuple[str, str, str], tuple[StoredRow, int]] = {}
        self._old: dict[tuple[str, str, str], tuple[StoredRow, int]] = {}
        self._size = 0

    def get(self, gateway: str, key: RowKey) -> StoredRow | None:
        """A row, not to be changed."""
        place = (gateway, *key)
        found = self._young.get(place)
        if found is None:
            found = self._old.pop(place, None)
            if found is None:
                return None
            self._add(place, found)
        return found[0]

    def put(self, gateway: str, row: StoredRow, size: int) -> None:
        """Keep a row that is stored with `size` bytes."""
        place = (gateway, row.table, row.row_id)
        self._old.pop(place, None)
        self._add(place, (row, size))

    def _add(self, place: tuple[str, str, str], row: tuple[StoredRow, int]) -> None:
        if self._size > self._allowed:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[place] = row
        self._size += row[1]
