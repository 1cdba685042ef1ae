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
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        if not wanted_later:
            future.cancel()
        raise
