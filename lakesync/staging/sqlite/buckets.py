"""The table that numbers bucket keys in `state.db`; feed entries store the numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import takewhile

_KNOWN = 100_000


class Buckets:
    """Finds and creates the numbers of bucket keys, with a cache. All methods belong to the owner thread."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql
        self._known: dict[tuple[str, str], int] = {}

    def forget(self) -> None:
        """Clear the cache, after a rollback."""
        self._known.clear()

    def find(self, gateway: str, name: str) -> int | None:
        """Return a key's number; None if it has none."""
        known = self._known.get((gateway, name))
        if known is not None:
            return known
        found = self._sql.execute("SELECT id FROM bucket WHERE gateway = ? AND name = ?", (gateway, name)).fetchone()
        return None if found is None else self._know(gateway, name, int(found[0]))

    def make(self, gateway: str, name: str) -> int:
        """Return a key's number; create one if it has none."""
        known = self.find(gateway, name)
        if known is not None:
            return known
        number = self._sql.execute("INSERT INTO bucket (gateway, name) VALUES (?, ?)", (gateway, name)).lastrowid
        assert number is not None
        return self._know(gateway, name, number)

    def names(self, gateway: str, prefix: str) -> Iterator[str]:
        """Return the numbered keys that start with `prefix`, in order."""
        rows = self._sql.execute(
            "SELECT name FROM bucket WHERE gateway = ? AND name >= ? ORDER BY name", (gateway, prefix)
        )
        return takewhile(lambda name: name.startswith(prefix), (name for (name,) in rows))

    def _know(self, gateway: str, name: str, number: int) -> int:
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[gateway, name] = number
        return number
