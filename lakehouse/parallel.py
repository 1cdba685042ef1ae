"""Runs a function for several tables in parallel threads, as making and checking a checkpoint does.

Small Spark queries spend most of their time in planning, which uses one core each.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

Argument = TypeVar("Argument")
Result = TypeVar("Result")

THREADS = 4
"""Number of threads."""


def in_parallel(
    spark: SparkSession, function: Callable[[Argument], Result], arguments: Iterable[Argument]
) -> list[Result]:
    """Call a function for several arguments in parallel, and return the results in order.

    Args:
        spark: an open Spark session. Its tags, by which a step's jobs are found, apply in the threads too.
        function: the function to call.
        arguments: an argument for each call.

    Raises:
        Exception: the first error of `function`, after the other calls have ended.
    """
    with ThreadPoolExecutor(THREADS, initializer=_tag, initargs=(spark, spark.getTags())) as pool:
        return list(pool.map(function, arguments))


def _tag(spark: SparkSession, tags: Iterable[str]) -> None:
    for tag in tags:
        spark.addTag(tag)
