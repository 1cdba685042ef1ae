"""`PeriodicTask`: calls a function periodically in a thread. Gateways call it, for example to flush when it is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger("flush")


class PeriodicTask:
    """Calls a function periodically in its own thread, and immediately when woken.

    Calls are due at multiples of the interval after the start, so that they do not drift. Those missed during a long
    call are skipped. After an error, which is logged, the interval doubles with each further error, up to `patience`.
    """

    def __init__(self, name: str, work: Callable[[], object], seconds: float = 1.0, patience: float = 30.0) -> None:
        """Create a task; `start` runs it.

        Args:
            name: the thread's name, also for the log.
            work: the function to call.
            seconds: seconds between two calls.
            patience: maximum seconds until the next call after an error.
        """
        self._name = name
        self._work = work
        self._seconds = seconds
        self._patience = patience
        self._wake = threading.Event()
        self._stopping = False
        self._failures = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. The first call comes after the first interval."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Call the function now."""
        self._wake.set()

    def stop(self) -> None:
        """Stop after a running call, and wait for the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        due = time.monotonic() + self._seconds
        while True:
            self._wake.wait(max(0.0, due - time.monotonic()))
            if self._stopping:
                return
            self._wake.clear()
            wait = self._call()
            due = _next(due, wait, time.monotonic())

    def _call(self) -> float:
        """Call the function once. Returns the seconds until the next call."""
        try:
            self._work()
        except Exception as error:
            self._failures += 1
            wait = max(self._seconds, min(self._patience, self._seconds * 2.0**self._failures))
            log.warning(
                "periodic task failed", task=self._name, reason=str(error), kind=type(error).__name__, again_in=wait
            )
            return wait
        self._failures = 0
        return self._seconds


def _next(due: float, wait: float, now: float) -> float:
    """Return the first time after `now` that is a multiple of `wait`, at least one, after `due`."""
    missed = max(0, int((now - due) // wait))
    return due + (missed + 1) * wait
