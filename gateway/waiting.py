"""Waiting on the event loop for what the engine's threads do."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def outcome(future: Future[T]) -> T:
    """The future's result. A caller that goes away does not undo the work, which may already be durable."""
    return await asyncio.shield(asyncio.wrap_future(future))
