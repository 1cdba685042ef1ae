"""Connections that wait for their next use, whatever the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

C = TypeVar("C")

_MOST_IDLE = 4


class Pool(Generic[C]):
    """Hands out one connection to one user at a time. Safe between threads.

    A connection whose use failed is closed, as nobody knows what state it is in; one that waited is looked at first.
    """

    def __init__(self, make: Callable[[], C], alive: Callable[[C], bool], close: Callable[[C], None]) -> None:
        """Args: make: a new one; alive: whether one that waited can be used; close: never raises."""
        self._make = make
        self._alive = alive
        self._close = close
        self._idle: list[C] = []
        self._lock = threading.Lock()

    @contextmanager
    def lease(self) -> Iterator[C]:
        """A connection, for as long as the `with` lasts."""
        connection = self._waiting() or self._make()
        try:
            yield connection
        except BaseException:
            self._close(connection)
            raise
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        self._close(connection)

    def close(self) -> None:
        """Close those that wait."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

    def _waiting(self) -> C | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._alive(connection):
                return connection
            self._close(connection)
