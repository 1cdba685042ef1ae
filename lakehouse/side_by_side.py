"""Queries of several tables side by side: small ones are mostly planned, each of them on one core."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

One = TypeVar("One")
Made = TypeVar("Made")

AT_ONCE = 4


def side_by_side(spark: SparkSession, make: Callable[[One], Made], each: Iterable[One]) -> list[Made]:
    """Call a function for several values at once and return the results in order; their jobs count for the caller.

    Args:
        spark: a session.
        make: the function.
        each: the values.

    Raises:
        Exception: the first that `make` raised, once the others have ended.
    """
    with ThreadPoolExecutor(AT_ONCE, initializer=_tag, initargs=(spark, spark.getTags())) as pool:
        return list(pool.map(make, each))


def _tag(spark: SparkSession, tags: Iterable[str]) -> None:
    for tag in tags:
        spark.addTag(tag)
