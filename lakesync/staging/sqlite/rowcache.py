"""Rows that were read or written of late, decoded."""

from __future__ import annotations

import msgspec

from lakesync.model.types import RowKey
from lakesync.staging.records import StoredRow


class Held(msgspec.Struct, frozen=True, gc=False):
    """A row of the file, not to be changed."""

    row: StoredRow
    number: int
    size: int
    """Bytes, as it is stored."""


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
        self._young: dict[tuple[str, str, str], Held] = {}
        self._old: dict[tuple[str, str, str], Held] = {}
        self._size = 0

    def get(self, gateway: str, key: RowKey) -> Held | None:
        """What is held of a row."""
        place = (gateway, *key)
        found = self._young.get(place)
        if found is None:
            found = self._old.pop(place, None)
            if found is None:
                return None
            self._add(place, found)
        return found

    def put(self, gateway: str, held: Held) -> None:
        """Keep a row."""
        place = (gateway, held.row.table, held.row.row_id)
        self._old.pop(place, None)
        self._add(place, held)

    def _add(self, place: tuple[str, str, str], held: Held) -> None:
        if self._size > self._allowed:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[place] = held
        self._size += held.size
