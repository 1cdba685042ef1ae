"""Parts of the group commit that both stores use: a queue in which gateways take turns, and the outcomes of jobs.

A *job* is a function that was given to the store's `submit` or `read`. It waits for a thread of the store together with
the future of its result. In a *group commit*, jobs that wait at the same time share one database transaction. Each job
is for one *gateway*, an app's stream of changes. `staging.sqlite` and `staging.postgres` call this module.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar


class Outcome(NamedTuple):
    """A job's future, with the result or error that completes it once the transaction has ended.

    The result is kept here until then, because a caller must not see a result that may be rolled back.
    """

    future: Future[Any]
    result: Any = None
    """What the job returned; None if it failed."""
    error: BaseException | None = None
    """None if the job succeeded."""

    def complete(self) -> None:
        """Complete the future."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


T = TypeVar("T")


class Turns(Generic[T]):
    """A queue of jobs: gateways take turns, so that a busy one does not delay the others.

    The jobs of one gateway stay in order. Use a queue from one thread at a time.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        """Gateway → its waiting jobs; the gateway whose turn is next comes first."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, gateway: str, job: T) -> None:
        """Add a job behind the others of its gateway.

        Args:
            gateway: the gateway's id.
            job: the job.
        """
        jobs = self._waiting.get(gateway)
        if jobs is None:
            self._waiting[gateway] = deque((job,))
        else:
            jobs.append(job)

    def take(self) -> T:
        """Remove and return the next job; its gateway goes behind the others. The queue must not be empty."""
        gateway = next(iter(self._waiting))
        jobs = self._waiting.pop(gateway)
        job = jobs.popleft()
        if jobs:
            self._waiting[gateway] = jobs
        return job
