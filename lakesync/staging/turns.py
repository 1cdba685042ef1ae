"""A queue in which gateways take turns, so that what one of them asks does not hold up the others."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Jobs of gateways, taken one of each in turn; those of one gateway in their order. It belongs to one thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, gateway: str, job: T) -> None:
        """Add a job as the last one of its gateway."""
        waiting = self._waiting.get(gateway)
        if waiting is None:
            self._waiting[gateway] = deque((job,))
        else:
            waiting.append(job)

    def take(self) -> T:
        """Return the next job, of which there must be one, and put its gateway behind the others."""
        gateway = next(iter(self._waiting))
        waiting = self._waiting.pop(gateway)
        job = waiting.popleft()
        if waiting:
            self._waiting[gateway] = waiting
        return job
