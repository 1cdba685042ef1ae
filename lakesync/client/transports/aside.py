"""What blocks is done in a thread of its own, so that whoever waits for it can be let go.

Closing a socket would not do: a name that is being looked up, a connection that is being made and a proxy that does not
answer have none to close yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from lakesync.client.errors import UnreachableError

T = TypeVar("T")

GLANCE = 0.5
"""Seconds after which a wait looks up: an interrupt that came just before it began is seen then, not at its end."""


class Aside:
    """Threads may share it."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waited_for: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def run(self, work: Callable[[], T], drop: Callable[[T], object] = lambda _: None) -> T:
        """The work's result, or what it raises.

        Args:
            drop: is given the result where nobody waits for it any more, in the work's own thread.

        Raises:
            UnreachableError: `let_go` was called meanwhile; the work goes on by itself.
        """
        done: Future[T] = Future()
        with self._lock:
            self._waited_for.add(done)
        try:
            start(lambda: _do(work, drop, done))
            while not done.done():
                with suppress(TimeoutError):
                    done.result(GLANCE)
            return done.result()
        except CancelledError:
            raise UnreachableError("the request was broken off here") from None
        finally:
            done.cancel()  # by an interrupt
            with self._lock:
                self._waited_for.discard(done)

    def let_go(self) -> None:
        """Let everybody go who waits now; from any thread."""
        with self._lock:
            for done in self._waited_for:
                done.cancel()


def start(work: Callable[[], object]) -> None:
    """Do it in a thread of its own, or at once where there can be none: Python 3.12 starts none while it ends."""
    try:
        threading.Thread(target=work, name="lakesync-request", daemon=True).start()
    except RuntimeError:
        work()


def _do(work: Callable[[], T], drop: Callable[[T], object], done: Future[T]) -> None:
    try:
        result = work()
    except BaseException as error:  # raised where it is waited for
        _settle(done.set_exception, error)
    else:
        if not _settle(done.set_result, result):
            drop(result)


def _settle(settle: Callable[[Any], None], outcome: object) -> bool:
    try:
        settle(outcome)
    except InvalidStateError:
        return False
    return True
