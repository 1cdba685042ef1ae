"""Work that goes from one future to the next, written down as if it waited."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from lakesync.exceptions import StagingUnavailableError

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


def run(steps: Steps[T]) -> Future[T]:
    """Go through the steps, each in the thread that ends the future before it; none of them may wait."""
    outcome: Future[T] = Future()

    def go(step: Callable[[], Future[Any]]) -> None:
        try:
            waited = step()
        except StopIteration as end:
            outcome.set_result(end.value)
        except BaseException as error:
            outcome.set_exception(error)
        else:
            waited.add_done_callback(ended)

    def ended(future: Future[Any]) -> None:
        error = future.exception()
        go((lambda: steps.send(future.result())) if error is None else (lambda: steps.throw(error)))

    go(lambda: next(steps))
    return outcome
