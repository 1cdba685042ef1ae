"""Helpers for `concurrent.futures.Future`: `SyncGateway` chains a read of the store and the commit that follows it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def completed(value: T) -> Future[T]:
    """Return a completed future."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def chained(source: Future[T], follow: Callable[[T], Future[U]]) -> Future[U]:
    """Chain two futures.

    Args:
        source: the first future.
        follow: called with its result, in the thread that completes it; returns the second future.

    Returns:
        A future that ends like the second one; or with the error of `source`, or that `follow` raised.
    """
    target: Future[U] = Future()

    def forward(ended: Future[U]) -> None:
        error = ended.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(ended.result())

    def start(ended: Future[T]) -> None:
        try:
            follow(ended.result()).add_done_callback(forward)
        except BaseException as error:
            target.set_exception(error)

    source.add_done_callback(start)
    return target
