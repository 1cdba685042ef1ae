"""Work that goes from one future to the next, written down as if it waited."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from lakesync.model.errors import StagingUnavailableError

T = TypeVar("T")

Steps = Generator[Future[Any], Any, T]
"""Yields a future, is sent its result or thrown its error, and returns what the whole comes to."""


def of_shard(name: str, future: Future[T]) -> Steps[T]:
    """What one shard answers.

    Raises:
        StagingUnavailableError: its store cannot be reached; the message names the shard.
    """
    try:
        answer: T = yield future
    except StagingUnavailableError as error:
        told = f"shard {name!r} is out, and this needs it (tables of other shards can be pushed to): {error}"
        raise StagingUnavailableError(told, retry_after=error.retry_after) from error
    return answer


def begin(outcome: Future[Any]) -> bool:
    """Say that an outcome is under way, so that nobody can cancel it any more; whether nobody has."""
    return not outcome.cancelled() and (outcome.running() or outcome.set_running_or_notify_cancel())


def run(steps: Steps[T], outcome: Future[T] | None = None) -> Future[T]:
    """Go through the steps, each in the thread that ends the future before it; none of them may wait.

    Args:
        steps: what is to be done.
        outcome: a future for what it comes to. Until one of the steps calls `begin` it can be cancelled: the step that
            is waited for is cancelled then where it has not begun, and thrown its `CancelledError`.
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
