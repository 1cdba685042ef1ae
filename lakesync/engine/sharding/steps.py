"""Runs a generator that yields futures, as a coroutine without an event loop: no thread waits for the futures.

The operations of `ShardedGateway` call several shards, one after another. Each is a generator that yields the future of
a call, and receives the result when the future is completed. `run` starts such a generator, and returns a future of
what it returns. What its docstring lists under "Returns" and "Raises" is the outcome of that future.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from lakesync.model.errors import StagingUnavailableError

T = TypeVar("T")

Steps = Generator[Future[Any], Any, T]
"""A generator that yields futures, is sent their results or thrown their errors, and returns the final result."""


def of_shard(name: str, future: Future[T]) -> Steps[T]:
    """Wait for a future of one shard, and return its result. Use it with `yield from`.

    Args:
        name: the shard's name.
        future: a future of an operation in the shard.

    Raises:
        StagingUnavailableError: the shard's store does not respond; the message names the shard.
            Any other error of the future is raised unchanged.
    """
    try:
        result: T = yield future
    except StagingUnavailableError as error:
        message = f"shard {name!r} is out, and this needs it (tables of other shards can be pushed to): {error}"
        raise StagingUnavailableError(message, retry_after=error.retry_after) from error
    return result


def begin(outcome: Future[Any]) -> bool:
    """Mark a future as running, so that it can no longer be cancelled; return False if it was cancelled."""
    return not outcome.cancelled() and (outcome.running() or outcome.set_running_or_notify_cancel())


def run(steps: Steps[T], outcome: Future[T] | None = None) -> Future[T]:
    """Run a generator to its end. Each step runs in the thread that completes the future before it, and must not block.

    Args:
        steps: the generator.
        outcome: the future to complete with the result; None creates one. It can be cancelled until a step calls
            `begin`. The pending future is then cancelled too, and its `CancelledError` is thrown into the generator.

    Returns:
        The future of what the generator returns or raises.
    """
    target: Future[T] = outcome or Future()
    pending: Future[Any] | None = None

    def advance(step: Callable[[], Future[Any]]) -> None:
        nonlocal pending
        try:
            pending = step()
        except StopIteration as end:
            if begin(target):
                target.set_result(end.value)
        except BaseException as error:
            if begin(target):
                target.set_exception(error)
        else:
            pending.add_done_callback(resume)

    def resume(future: Future[Any]) -> None:
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
