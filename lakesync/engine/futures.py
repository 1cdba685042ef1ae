"""Operations of several steps without a waiting thread: generators that yield the future of each step.

`SyncGateway` reads a page and records it in this way, and the operations of `engine.sharding` call several shards, one
after another. `run` starts such a generator, and returns a future of what it returns. What a generator's docstring
lists under "Returns" and "Raises" is the outcome of that future.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Steps = Generator[Future[Any], Any, T]
"""A generator that yields futures, is sent their results or thrown their errors, and returns the final result."""


def mark_running(outcome: Future[Any]) -> bool:
    """Mark a future as running, so that it can no longer be cancelled; return False if it was cancelled."""
    return not outcome.cancelled() and (outcome.running() or outcome.set_running_or_notify_cancel())


def run(steps: Steps[T], outcome: Future[T] | None = None) -> Future[T]:
    """Run a generator to its end. Each step runs in the thread that completes the future before it, and must not block.

    Args:
        steps: the generator.
        outcome: the future to complete with the result; None creates one. It can be cancelled until a step calls
            `mark_running`. The pending future is then cancelled too, and its `CancelledError` is thrown into the
            generator.

    Returns:
        The future of what the generator returns or raises.
    """
    target: Future[T] = outcome or Future()
    _Run(steps, target).advance(partial(next, steps))
    return target


class _Run(Generic[T]):
    """A generator that is run to its end.

    A future keeps its callbacks after it is completed; here these are methods of this object. So this object drops its
    own reference to each completed future. Otherwise both would refer to each other, and the page in the future's
    result would stay in memory until a garbage collection.
    """

    def __init__(self, steps: Steps[T], target: Future[T]) -> None:
        self._steps = steps
        self._target: Future[T] | None = target
        """The future to complete with the result; None afterwards."""
        self._pending: Future[Any] | None = None
        """The future that the generator waits for."""
        target.add_done_callback(self._cancel_pending)

    def advance(self, step: Callable[[], Future[Any]]) -> None:
        """Run the generator to its next future, and continue when that is completed; or complete the target."""
        try:
            pending = self._pending = step()
        except StopIteration as end:
            target = self._end()
            if mark_running(target):
                target.set_result(end.value)
        except BaseException as error:
            target = self._end()
            if mark_running(target):
                target.set_exception(error)
        else:
            pending.add_done_callback(self._resume)

    def _end(self) -> Future[T]:
        """Return the target, and drop the reference to it."""
        target, self._target = self._target, None
        assert target is not None
        return target

    def _resume(self, future: Future[Any]) -> None:
        """Give the generator the result of the future that it waited for, or throw its error into it."""
        self._pending = None
        try:
            result = future.result()
        except BaseException as error:
            self.advance(partial(self._steps.throw, error))
        else:
            self.advance(partial(self._steps.send, result))

    def _cancel_pending(self, completed: Future[T]) -> None:
        """Cancel the future that the generator waits for, if the target was cancelled."""
        pending = self._pending
        if completed.cancelled() and pending is not None:
            pending.cancel()
