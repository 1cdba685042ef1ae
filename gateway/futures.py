"""Awaits the futures of the engine's worker threads on the event loop, for routes and WebSocket connections."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

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

    def on_done(done: Future[T]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(_copy_result, done, waiter)

    future.add_done_callback(on_done)
    try:
        return await waiter
    except asyncio.CancelledError:
        if not finish_if_cancelled:
            future.cancel()
        raise


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
