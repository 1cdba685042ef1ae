"""Runs a function for several tables in parallel threads. Small queries mostly plan, which uses one core each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

One = TypeVar("One")
Made = TypeVar("Made")

AT_ONCE = 4
"""Number of threads."""


def side_by_side(spark: SparkSession, make: Callable[[One], Made], each: Iterable[One]) -> list[Made]:
    """Call a function for several values in parallel, and return the results in order. Jobs get the caller's tags.

    Args:
        spark: an open Spark session.
        make: the function.
        each: the values.

    Raises:
        Exception: the first error of `make`, after the other calls have ended.
    """
    with ThreadPoolExecutor(AT_ONCE, initializer=_tag, initargs=(spark, spark.getTags())) as pool:
        return list(pool.map(make, each))


def _tag(spark: SparkSession, tags: Iterable[str]) -> None:
    for tag in tags:
        spark.addTag(tag)
