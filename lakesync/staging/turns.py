"""A queue in which gateways take turns, so that one gateway's jobs do not delay the others. Both stores use it."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Jobs by gateway: one of each gateway in turn, and those of one gateway in order. Use it from one thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, gateway: str, job: T) -> None:
        """Add a job behind the others of its gateway."""
        waiting = self._waiting.get(gateway)
        if waiting is None:
            self._waiting[gateway] = deque((job,))
        else:
            waiting.append(job)

    def take(self) -> T:
        """Remove and return the next job; the queue must not be empty. Its gateway goes behind the others."""
        gateway = next(iter(self._waiting))
        waiting = self._waiting.pop(gateway)
        job = waiting.popleft()
        if waiting:
            self._waiting[gateway] = waiting
        return job
