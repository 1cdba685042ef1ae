"""Live queries: a query that runs again when a table that it reads has changed."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self

from lakesync.client.sqlite.database import connect_read_only, run_query
from lakesync.client.sqlite.tables import Row

MIN_INTERVAL = 0.05
"""Seconds between checks whether another connection has committed, in this process or another."""
MAX_INTERVAL = 0.25
"""The same after some time without a commit, because each check wakes the processor."""


class Watch:
    """Iterates over the results of a query: the current one, then each changed one.

    A query of synced tables runs again when one of them was written to, because the triggers count writes. If it reads
    other tables too, it runs after every commit, and its result is compared with the one before.
    """

    def __init__(
        self,
        path: Path,
        sql: str,
        params: Any,
        synced: Collection[str],
        to_rows: Callable[[sqlite3.Cursor], list[Row]],
        closed: threading.Event,
    ) -> None:
        """Prepare the query.

        Args:
            path: the app's database.
            sql: the query.
            params: its parameters.
            synced: the names of the synced tables.
            to_rows: converts a cursor to rows.
            closed: set when the database is closed.
        """
        self._db = connect_read_only(path)
        self._lock = threading.Lock()
        self._closed = False
        self._sql, self._params = sql, params
        self._to_rows = to_rows
        self._database_closed = closed
        self.tables = self._find_tables()
        """The tables that the query reads."""
        self._synced = sorted(self.tables & set(synced))
        self._reads_other_tables = bool(self.tables - set(synced))
        self._data_version = -1
        self._counters: list[Any] | None = None
        self._result: list[Row] | None = None
        self.interval = MIN_INTERVAL
        """Seconds until the next check."""

    def __iter__(self) -> Iterator[list[Row]]:
        """Yield results until the watch or the database is closed."""
        while (found := self.next()) is not None:
            yield found

    def next(self, timeout: float | None = None) -> list[Row] | None:
        """Wait for the next result.

        Args:
            timeout: seconds; None waits without limit.

        Returns:
            The rows; None after the timeout, or if the watch or the database was closed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not (self._closed or self._database_closed.is_set()):
            if (found := self._check()) is not None:
                self.interval = MIN_INTERVAL
                return found
            left = self.interval if until is None else min(self.interval, until - time.monotonic())
            self.interval = min(MAX_INTERVAL, self.interval * 1.1)
            if left <= 0:
                return None
            self._database_closed.wait(left)
        self.close()
        return None

    def close(self) -> None:
        """Stop watching; a thread that waits in `next` returns. Threads may call it."""
        with self._lock:
            self._closed = True
            self._db.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):  # else __init__ failed
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> list[Row] | None:
        with self._lock:
            return None if self._closed else self._changed_result()

    def _changed_result(self) -> list[Row] | None:
        """Run the query if a table may have changed; return its result if that has changed."""
        data_version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if data_version == self._data_version:
            return None
        self._data_version = data_version
        self._db.execute("BEGIN")  # counters and rows from one snapshot
        try:
            counters = [
                self._db.execute("SELECT changes FROM _lakesync_tables WHERE tbl = ?", (table,)).fetchone()
                for table in self._synced
            ]
            if self._counters == counters and not self._reads_other_tables:
                return None
            found = self._to_rows(run_query(self._db, self._sql, self._params))
        finally:
            self._db.execute("ROLLBACK")
        is_same = self._counters == counters and found == self._result
        self._counters, self._result = counters, found if self._reads_other_tables else None
        return None if is_same else found

    def _find_tables(self) -> set[str]:
        tables: set[str] = set()

        def authorise(action: int, first: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ and first is not None:
                tables.add(first)
            return sqlite3.SQLITE_OK

        self._db.set_authorizer(authorise)
        try:
            self._db.execute(f"EXPLAIN {self._sql}", self._params).fetchall()
        finally:
            self._db.set_authorizer(None)
        return {table for table in tables if not table.startswith("sqlite_")}
