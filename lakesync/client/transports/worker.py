"""Runs blocking calls in worker threads, so that the caller can stop waiting for them.

Closing a socket would not be enough: a DNS lookup, a connection attempt or a silent proxy has no socket to close yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from lakesync.client.errors import UnreachableError

T = TypeVar("T")

POLL_SECONDS = 0.5
"""How long one wait lasts, so that a KeyboardInterrupt just before it is raised soon."""


class CancellableCalls:
    """Blocking calls whose callers can stop waiting. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def run(self, call: Callable[[], T], discard: Callable[[T], object] = lambda _: None) -> T:
        """Run a blocking call in a thread and wait for it.

        Args:
            call: the call.
            discard: called in that thread with the result, if the caller has stopped waiting.

        Returns:
            The call's result; its exception is raised.

        Raises:
            UnreachableError: `cancel_all` was called meanwhile; the call continues in its thread.
        """
        future: Future[T] = Future()
        with self._lock:
            self._waiting.add(future)
        try:
            start_thread(lambda: _run(call, discard, future))
            while not future.done():
                with suppress(TimeoutError):
                    future.result(POLL_SECONDS)
            return future.result()
        except CancelledError:
            raise UnreachableError("the request was cancelled") from None
        finally:
            future.cancel()  # after a KeyboardInterrupt
            with self._lock:
                self._waiting.discard(future)

    def cancel_all(self) -> None:
        """Make every waiting `run` raise `UnreachableError`. Threads may call it."""
        with self._lock:
            for future in self._waiting:
                future.cancel()


def start_thread(call: Callable[[], object]) -> None:
    """Run a call in a new thread, or at once if there can be none: Python 3.12 starts no thread while it shuts down."""
    try:
        threading.Thread(target=call, name="lakesync-request", daemon=True).start()
    except RuntimeError:
        call()


def _run(call: Callable[[], T], discard: Callable[[T], object], future: Future[T]) -> None:
    try:
        result = call()
    except BaseException as error:  # raised in the waiting thread
        _complete(future.set_exception, error)
    else:
        if not _complete(future.set_result, result):
            discard(result)


def _complete(complete: Callable[[Any], None], outcome: object) -> bool:
    """Complete a future; return False if it was cancelled."""
    try:
        complete(outcome)
    except InvalidStateError:
        return False
    return True
