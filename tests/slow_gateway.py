"""Runs the gateway with random pauses between the steps of a request, for `tests.blackbox.server.Server(slow=True)`.

Overlapping requests meet between two steps that take microseconds: a page is read, and then recorded; a push is
committed in one shard, and then in the next; a commit is announced, and then broadcast. On an idle machine they
interleave in the same few orders. Pauses of milliseconds between these steps make every order possible. A busy machine
may pause at the same places, so every promise must hold with them. It runs in the folder of the gateway under test,
which may be of another commit, and imports the gateway from there.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

_PAUSES = (*[0.0] * 6, 0.001, 0.004, 0.012, 0.03)
"""Seconds. Most pauses are zero, so that whole requests are served while another one is paused."""


def _pause() -> float:
    return random.choice(_PAUSES)


class _PausedFuture(Future[Any]):
    """A future that is completed a pause after another one, which is created a pause after this one."""

    def __init__(self, begin: Callable[[], Future[Any]]) -> None:
        super().__init__()
        self._begin = begin
        self._pending: Future[Any] | None = None
        self._after(self._start)

    def cancel(self) -> bool:
        pending = self._pending
        return (pending is None or pending.cancel()) and super().cancel()

    @staticmethod
    def _after(step: Callable[[], None]) -> None:
        if (seconds := _pause()) > 0:
            threading.Timer(seconds, step).start()
        else:
            step()

    def _start(self) -> None:
        if self.cancelled():
            return
        try:
            self._pending = self._begin()
        except BaseException as error:
            self.set_exception(error)
        else:
            self._pending.add_done_callback(lambda _: self._after(self._complete))

    def _complete(self) -> None:
        assert self._pending is not None
        if self._pending.cancelled():
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return
        error = self._pending.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(self._pending.result())


def _pause_work(owner: type, name: str) -> None:
    """Pause before a method's work begins, and before its future is completed."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def paused(*arguments: Any, **named: Any) -> Future[Any]:
        return _PausedFuture(lambda: method(*arguments, **named))

    setattr(owner, name, paused)


def _pause_coroutine(owner: Any, name: str) -> None:
    """Pause before and after a coroutine."""
    function = getattr(owner, name)

    @functools.wraps(function)
    async def paused(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(_pause())
        try:
            return await function(*arguments, **named)
        finally:
            await asyncio.sleep(_pause())

    setattr(owner, name, paused)


def _pause_calls(owner: type, name: str) -> None:
    """Let a thread make a method's calls in order, with a pause before each; they return nothing."""
    method = getattr(owner, name)
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def make_calls() -> None:
        while True:
            call = calls.get()
            time.sleep(_pause())
            call()

    @functools.wraps(method)
    def paused(*arguments: Any) -> None:
        calls.put(lambda: method(*arguments))

    threading.Thread(target=make_calls, daemon=True).start()
    setattr(owner, name, paused)


def main() -> int:
    """Add the pauses, then serve."""
    sys.path[0] = str(Path.cwd())  # not the folder of this file
    from gateway import __main__ as gateway
    from gateway.live import connection
    from gateway.live.hub import Hub
    from gateway.routes import sync
    from lakesync.staging.postgres.store import PostgresStore
    from lakesync.staging.sqlite.store import SqliteStore

    for store in (SqliteStore, PostgresStore):
        for name in ("submit", "read"):
            _pause_work(store, name)
    for module in (sync, connection):
        for name in ("serve_push", "serve_pull"):
            _pause_coroutine(module, name)
    _pause_calls(Hub, "_on_commit")
    return gateway.main()


if __name__ == "__main__":
    sys.exit(main())
