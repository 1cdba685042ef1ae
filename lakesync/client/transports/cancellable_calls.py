"""Blocking calls whose caller can stop waiting for them. The HTTP and WebSocket transports send requests by them.

A call runs in a thread of its own. Closing its socket would not end every call: during a DNS lookup or a connection
attempt there is no socket to close yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from lakesync.client.errors import UnreachableError

T = TypeVar("T")

_POLL_SECONDS = 0.5
"""Seconds of one wait for a result; a call waits many times. If Ctrl-C is pressed just before a wait begins, Python
raises KeyboardInterrupt only after that wait, so no wait may be long."""


class CancellableCalls:
    """Blocking calls whose callers can stop waiting. Thread-safe."""

    def __init__(self) -> None:
        """Start without calls."""
        self._waiting: set[Future[Any]] = set()
        """One future for each `run` in progress."""
        self._lock = threading.Lock()

    def run(self, call: Callable[[], T], discard: Callable[[T], object] = lambda _: None) -> T:
        """Run a blocking call in a thread and wait for it.

        Args:
            call: the blocking function.
            discard: called with the result if the caller has stopped waiting, to close it.

        Returns:
            The call's result; its exception is raised.

        Raises:
            UnreachableError: `cancel_all` was called meanwhile. The call continues in its thread.
        """
        future: Future[T] = Future()
        with self._lock:
            self._waiting.add(future)
        try:
            start_thread(lambda: _run(call, discard, future))
            while not future.done():
                with suppress(TimeoutError):
                    future.result(_POLL_SECONDS)
            return future.result()
        except CancelledError:
            raise UnreachableError("the request was cancelled") from None
        except BaseException:
            if not future.cancel() and future.exception() is None:  # it ended before a KeyboardInterrupt
                discard(future.result())
            raise
        finally:
            with self._lock:
                self._waiting.discard(future)

    def cancel_all(self) -> None:
        """Make every waiting `run` raise `UnreachableError`. Any thread may call it."""
        with self._lock:
            for future in self._waiting:
                future.cancel()


def start_thread(call: Callable[[], object]) -> None:
    """Run a function in a new daemon thread.

    Python 3.12 and later cannot start a thread while the interpreter shuts down; the function then runs in this thread.
    """
    try:
        threading.Thread(target=call, name="lakesync-request", daemon=True).start()
    except RuntimeError:
        call()


def _run(call: Callable[[], T], discard: Callable[[T], object], future: Future[T]) -> None:
    """Complete a future with the outcome of a call; discard the result if the future was cancelled."""
    try:
        result = call()
    except BaseException as error:  # raised in the waiting thread
        _complete(future.set_exception, error)
    else:
        if not _complete(future.set_result, result):
            discard(result)


def _complete(set_outcome: Callable[[Any], None], outcome: object) -> bool:
    """Call a future's `set_result` or `set_exception`; return False if the future was cancelled."""
    try:
        set_outcome(outcome)
    except InvalidStateError:
        return False
    return True
