"""Waiting on the event loop for what the engine's threads do."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def outcome(future: Future[T], *, wanted_later: bool = True) -> T:
    """The future's result. A caller that goes away does not undo the work, which may already be durable.

    Args:
        future: of work that a thread does.
        wanted_later: whether work that has not begun is still to be done when the caller has gone away.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[T] = loop.create_future()

    def told(ended: Future[T]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(_hand_over, ended, waiter)

    future.add_done_callback(told)
    try:
        return await waiter
    except asyncio.CancelledError:
        if not wanted_later:
            future.cancel()
        raise


def _hand_over(ended: Future[T], waiter: asyncio.Future[T]) -> None:
    if waiter.done():  # its caller went away
        return
    if ended.cancelled():
        waiter.cancel()
        return
    error = ended.exception()
    if error is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(ended.result())
