"""Waits, in the event loop, for a future of the engine's or the store's threads.

All routes and WebSocket connections call `result_of`. It replaces `asyncio.wrap_future`, which wakes up the event loop
for each future, and cancels the work of a cancelled request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


async def result_of(future: Future[T], *, finish_if_cancelled: bool = True) -> T:
    """Wait for a future and return its result.

    `asyncio.wrap_future` would cancel the future when the waiting task is cancelled, even if its work is durable.

    Args:
        future: future of work in a thread.
        finish_if_cancelled: whether work that has not begun is still done if the waiting task is cancelled.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[T] = loop.create_future()
    completions = _completions.get(loop)
    if completions is None:
        completions = _completions[loop] = _Completions()
    future.add_done_callback(lambda done: completions.add(loop, done, waiter))
    try:
        return await waiter
    except asyncio.CancelledError:
        if not finish_if_cancelled:
            future.cancel()
        raise


class _Completions:
    """Completed futures whose waiting tasks, in one event loop, do not know of it yet.

    The store's thread completes all pushes of a transaction one after another. Each wake-up of the event loop costs
    system calls and a change of threads, so the loop is woken up once for all futures that complete until it runs.
    """

    def __init__(self) -> None:
        self._completed: deque[tuple[Future[Any], asyncio.Future[Any]]] = deque()
        """Pairs of a completed future and the future that its waiter awaits."""
        self._scheduled = False
        """Whether the event loop has been woken up for them."""

    def add(self, loop: asyncio.AbstractEventLoop, done: Future[Any], waiter: asyncio.Future[Any]) -> None:
        """Copy a completed future's result to its waiter, in the event loop's thread. Any thread may call this."""
        self._completed.append((done, waiter))
        if not self._scheduled and not loop.is_closed():
            self._scheduled = True
            loop.call_soon_threadsafe(self._copy_results)

    def _copy_results(self) -> None:
        self._scheduled = False  # first, so that whatever is added from now on schedules another call
        while self._completed:
            _copy_result(*self._completed.popleft())


_completions: WeakKeyDictionary[asyncio.AbstractEventLoop, _Completions] = WeakKeyDictionary()
"""The completions of each event loop."""


def _copy_result(done: Future[T], waiter: asyncio.Future[T]) -> None:
    """Set a thread's result on the event loop's future."""
    if waiter.done():  # the waiting task was cancelled
        return
    if done.cancelled():
        waiter.cancel()
        return
    error = done.exception()
    if error is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(done.result())
