"""Runs a generator that yields futures, without a thread that waits: operations over several shards are written so."""

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
    """Return the result of one shard.

    Args:
        name: of the shard.
        future: of its result.

    Raises:
        StagingUnavailableError: the shard's store does not answer; the message names the shard.
    """
    try:
        answer: T = yield future
    except StagingUnavailableError as error:
        message = f"shard {name!r} is out, and this needs it (tables of other shards can be pushed to): {error}"
        raise StagingUnavailableError(message, retry_after=error.retry_after) from error
    return answer


def begin(outcome: Future[Any]) -> bool:
    """Mark a future as running, so that it can no longer be cancelled; return False if it was cancelled."""
    return not outcome.cancelled() and (outcome.running() or outcome.set_running_or_notify_cancel())


def run(steps: Steps[T], outcome: Future[T] | None = None) -> Future[T]:
    """Run the steps, each in the thread that completes the future before it; no step may block.

    Args:
        steps: the generator.
        outcome: future of the final result. It can be cancelled until a step calls `begin`; the pending future is then
            cancelled too, and its `CancelledError` is thrown into the generator.
    """
    ending: Future[T] = outcome or Future()
    waited: Future[Any] | None = None

    def go(step: Callable[[], Future[Any]]) -> None:
        nonlocal waited
        try:
            waited = step()
        except StopIteration as end:
            if begin(ending):
                ending.set_result(end.value)
        except BaseException as error:
            if begin(ending):
                ending.set_exception(error)
        else:
            waited.add_done_callback(ended)

    def ended(future: Future[Any]) -> None:
        try:
            answer = future.result()
        except BaseException as error:
            go(partial(steps.throw, error))
        else:
            go(partial(steps.send, answer))

    def stop(asked: Future[T]) -> None:
        if asked.cancelled() and waited is not None:
            waited.cancel()

    ending.add_done_callback(stop)
    go(lambda: next(steps))
    return ending
