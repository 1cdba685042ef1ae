"""What the group commits of both stores have in common: a queue in which gateways take turns, and jobs' results."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar


class Outcome(NamedTuple):
    """A future and the result or error that completes it."""

    future: Future[Any]
    result: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        """Complete the future."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


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
