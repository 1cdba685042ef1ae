"""Work that goes from one future to the next, written down as if it waited."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

Steps = Generator[Future[Any], Any, T]
"""Yields a future, is sent its result or thrown its error, and returns what the whole comes to."""


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
