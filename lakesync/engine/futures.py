"""Operations of several steps without a waiting thread: generators that yield the future of each step.

`SyncGateway` reads a page and records it in this way, and the operations of `engine.sharding` call several shards, one
after another. `run` starts such a generator, and returns a future of what it returns. What a generator's docstring
lists under "Returns" and "Raises" is the outcome of that future.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

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
    pending: Future[Any] | None = None

    def advance(step: Callable[[], Future[Any]]) -> None:
        """Run the generator to its next future, and continue when that is completed; or complete `target`."""
        nonlocal pending
        try:
            pending = step()
        except StopIteration as end:
            if mark_running(target):
                target.set_result(end.value)
        except BaseException as error:
            if mark_running(target):
                target.set_exception(error)
        else:
            pending.add_done_callback(resume)

    def resume(future: Future[Any]) -> None:
        """Give the generator the result of the future that it waited for, or throw its error into it."""
        try:
            result = future.result()
        except BaseException as error:
            advance(partial(steps.throw, error))
        else:
            advance(partial(steps.send, result))

    def cancel_pending(completed: Future[T]) -> None:
        if completed.cancelled() and pending is not None:
            pending.cancel()

    target.add_done_callback(cancel_pending)
    advance(lambda: next(steps))
    return target
