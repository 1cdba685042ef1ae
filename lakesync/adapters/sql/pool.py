"""A connection pool for any driver. The executors of Postgres, MySQL and SQLite use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

C = TypeVar("C")

_MAX_IDLE = 4
"""Idle connections that are kept; further ones are closed after use. The number of connections in use has no limit."""


class Pool(Generic[C]):
    """Lends each connection to one user at a time. Safe to use from several threads.

    A connection whose use failed is closed, because its state is unknown. An idle one is checked before it is reused.
    """

    def __init__(self, make: Callable[[], C], is_alive: Callable[[C], bool], close: Callable[[C], None]) -> None:
        """Create an empty pool.

        Args:
            make: opens a connection.
            is_alive: returns whether an idle connection can be used.
            close: closes a connection; never raises.
        """
        self._make = make
        self._is_alive = is_alive
        self._close = close
        self._idle: list[C] = []
        self._lock = threading.Lock()

    @contextmanager
    def lease(self) -> Iterator[C]:
        """Lend a connection for the duration of a `with` block."""
        connection = self._take_idle() or self._make()
        try:
            yield connection
        except BaseException:
            self._close(connection)
            raise
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        self._close(connection)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

    def _take_idle(self) -> C | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._is_alive(connection):
                return connection
            self._close(connection)
