"""A query that is asked again when a table that it reads has changed."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self

from lakesync.client.database import asked, reader
from lakesync.client.table import Row

LOOK = 0.05
"""Seconds between looks whether anybody wrote to the file, in this process or another."""
REST = 0.25
"""The same when nobody has for some time: each look wakes the processor up."""


class Watch:
    """Iterates over a query's results: at once, then whenever they may be others.

    For synced tables that is when one was written to. A table of the app's own has nobody who counts its writes: there
    the result itself is compared.
    """

    def __init__(
        self,
        path: Path,
        sql: str,
        params: Any,
        tracked: Collection[str],
        rows: Callable[[sqlite3.Cursor], list[Row]],
        ended: threading.Event,
    ) -> None:
        """Args: ended: set when the database is closed."""
        self._db = reader(path)
        self._one = threading.Lock()
        self._closed = False
        self._sql, self._params = sql, params
        self._rows = rows
        self._ended = ended
        self.tables = self._read_tables()
        """What the query reads."""
        self._tracked = sorted(self.tables & set(tracked))
        self._untracked = bool(self.tables - set(tracked))
        self._version = -1
        self._seen: list[Any] | None = None
        self._found: list[Row] | None = None
        self.pause = LOOK
        """Seconds until the next look is worth its while."""

    def __iter__(self) -> Iterator[list[Row]]:
        """Results, until this or the database is closed."""
        while (found := self.next()) is not None:
            yield found

    def next(self, timeout: float | None = None) -> list[Row] | None:
        """The next result; None when `timeout` seconds have passed without one, or this or the database was closed."""
        until = None if timeout is None else time.monotonic() + timeout
        while not (self._closed or self._ended.is_set()):
            if (found := self._look()) is not None:
                self.pause = LOOK
                return found
            left = self.pause if until is None else min(self.pause, until - time.monotonic())
            self.pause = min(REST, self.pause * 1.1)
            if left <= 0:
                return None
            self._ended.wait(left)
        self.close()
        return None

    def close(self) -> None:
        """Stop looking, in whichever thread somebody waits for the next result."""
        with self._one:
            self._closed = True
            self._db.close()

    def __del__(self) -> None:
        if hasattr(self, "_one"):  # else it was never opened
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self) -> list[Row] | None:
        with self._one:
            return None if self._closed else self._asked()

    def _asked(self) -> list[Row] | None:
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return None
        self._version = version
        self._db.execute("BEGIN")  # counters and rows of one moment
        try:
            counters = [
                self._db.execute("SELECT changes FROM _lakesync_tables WHERE tbl = ?", (table,)).fetchone()
                for table in self._tracked
            ]
            if self._seen == counters and not self._untracked:
                return None
            found = self._rows(asked(self._db, self._sql, self._params))
        finally:
            self._db.execute("ROLLBACK")
        same = self._seen == counters and found == self._found
        self._seen, self._found = counters, found if self._untracked else None
        return None if same else found

    def _read_tables(self) -> set[str]:
        tables: set[str] = set()

        def note(action: int, first: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ and first is not None:
                tables.add(first)
            return sqlite3.SQLITE_OK

        self._db.set_authorizer(note)
        try:
            self._db.execute(f"EXPLAIN {self._sql}", self._params).fetchall()
        finally:
            self._db.set_authorizer(None)
        return {table for table in tables if not table.startswith("sqlite_")}
