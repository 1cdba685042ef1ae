"""A cache of decoded rows."""

from __future__ import annotations

import msgspec

from lakesync.model.types import RowKey
from lakesync.staging.records import StoredRow


class Held(msgspec.Struct, frozen=True, gc=False):
    """A row of the file; it must not be changed."""

    row: StoredRow
    number: int
    size: int
    """Stored bytes."""


class RowCache:
    """Caches rows up to about a number of stored bytes; the least recently used ones are dropped first.

    It has two generations. When the young one is full, it becomes the old one, and the old one is dropped. A row that
    is read becomes young again.
    """

    def __init__(self, stored_bytes: int) -> None:
        self._allowed = stored_bytes // 2
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self._young: dict[tuple[str, str, str], Held] = {}
        self._old: dict[tuple[str, str, str], Held] = {}
        self._size = 0

    def get(self, gateway: str, key: RowKey) -> Held | None:
        """Return a cached row; None if it is not cached."""
        place = (gateway, *key)
        found = self._young.get(place)
        if found is None:
            found = self._old.pop(place, None)
            if found is None:
                return None
            self._add(place, found)
        return found

    def put(self, gateway: str, held: Held) -> None:
        """Cache a row."""
        place = (gateway, held.row.table, held.row.row_id)
        self._old.pop(place, None)
        self._add(place, held)

    def _add(self, place: tuple[str, str, str], held: Held) -> None:
        if self._size > self._allowed:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[place] = held
        self._size += held.size
