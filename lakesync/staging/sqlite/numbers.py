"""Numbers rows in `state.db`, so that rows under one bucket key are stored close together, on few pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence

from lakesync.model.types import RowKey
from lakesync.staging.sqlite import bulk

_LEASE = 64
"""Numbers that are reserved for rows under one bucket key at a time."""
_LEASES_KNOWN = 50_000
_FIND = "SELECT table_name, row_id, number FROM row_state WHERE gateway = ? AND table_name = ? AND row_id IN ({})"


def home_of(seen_under: Sequence[str]) -> str:
    """Return the bucket key beside whose rows a new row is stored; empty if there is none.

    It is the longest key, which has the most conditions and so probably the fewest rows.
    """
    return seen_under[0] if len(seen_under) == 1 else max(seen_under, key=len, default="")


class Numbers:
    """Finds row numbers and creates new ones. New numbers only grow, apart from reserved ones."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql
        self._leases: dict[tuple[str, str], Iterator[int]] = {}
        self._next = 0

    def find(self, gateway: str, keys: Collection[RowKey]) -> dict[RowKey, int]:
        """Return the numbers of those rows that have one."""
        row_ids: dict[str, list[str]] = {}
        for table, row_id in keys:
            row_ids.setdefault(table, []).append(row_id)
        return {
            (name, row_id): number
            for table, wanted in row_ids.items()
            for name, row_id, number in bulk.search(self._sql, _FIND, (gateway, table), wanted)
        }

    def new(self, gateway: str, seen_under: Sequence[str]) -> int:
        """Return a number for a new row under these bucket keys."""
        place = (gateway, home_of(seen_under))
        number = next(self._leases.get(place, iter(())), None)
        if number is None:
            number = self._lease(place)
        return number

    def _lease(self, place: tuple[str, str]) -> int:
        if self._next == 0:
            (highest,) = self._sql.execute("SELECT max(number) FROM row_state").fetchone()
            self._next = (highest or 0) + 1
        first, self._next = self._next, self._next + _LEASE
        if len(self._leases) >= _LEASES_KNOWN:
            self._leases.clear()
        self._leases[place] = iter(range(first + 1, self._next))
        return first
