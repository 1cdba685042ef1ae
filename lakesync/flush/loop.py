"""What runs beside a gateway without a pipeline: a look, every second, at whether something is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger("flush")


class Loop:
    """Calls one function at fixed times in a thread of its own, and at once when it is woken.

    Times are counted from the start, so they do not drift with what a call takes; those that a long call has missed
    are left out. A call that raises is logged, and the next comes later each time, up to `patience`.
    """

    def __init__(self, name: str, work: Callable[[], object], seconds: float = 1.0, patience: float = 30.0) -> None:
        """Args: seconds: between two calls; patience: the most between two calls that fail."""
        self._name = name
        self._work = work
        self._seconds = seconds
        self._patience = patience
        self._wake = threading.Event()
        self._stopping = False
        self._failures = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the first call comes after the first interval."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Call now."""
        self._wake.set()

    def stop(self) -> None:
        """End after the call under way, if any; returns when the thread has ended."""
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
        """One call; seconds until the next."""
        try:
            self._work()
        except Exception as error:
            self._failures += 1
            wait = max(self._seconds, min(self._patience, self._seconds * 2.0**self._failures))
            log.warning("loop failed", loop=self._name, reason=str(error), kind=type(error).__name__, again_in=wait)
            return wait
        self._failures = 0
        return self._seconds


def _next(due: float, wait: float, now: float) -> float:
    """The first time after `now` that is a whole number of waits behind `due`."""
    missed = max(0, int((now - due) // wait))
    return due + (missed + 1) * wait
