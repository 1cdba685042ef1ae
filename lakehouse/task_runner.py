"""Work in numbered parts, each done by a task of Spark."""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Part = Callable[[int], Iterator[pa.RecordBatch]]
    """What the part of a number makes; goes to tasks as a value."""

_PARALLELISM = "spark.default.parallelism"
_KEPT = ((-3, 32 << 20), (-1, 64 << 20), (-2, 16 << 20))
"""glibc's M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD, in bytes."""


def in_tasks(
    spark: SparkSession, count: int, part: Part, schema: str | StructType, *, waiting: bool = False
) -> DataFrame:
    """Return what the parts make, in columns of a schema.

    Args:
        spark: a session.
        count: how many parts there are.
        part: makes the part of a number, in a task.
        schema: of the columns.
        waiting: each part has a task of its own, as it mostly waits for others and may hang. Else the parts share as
            many tasks as there are cores, which leaves the memory of each task what it is.
    """
    tasks = count if waiting else min(count, cores(spark) or count)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield from part(number)

    return spark.range(0, count, 1, max(1, tasks)).mapInArrow(run, schema)


def cores(spark: SparkSession) -> int | None:
    """Return how many cores the embedded server has; None for a cluster, whose executors have as many slots."""
    found = spark.conf.get(_PARALLELISM, None)
    return int(found) if found is not None else None


@cache
def prepare_worker() -> None:
    """A task's process works on its one core, and keeps memory that it frees for what it does next.

    A page given back is cleared by the kernel when it is asked for again: with pyarrow's own allocator, and glibc's as
    it comes, up to a third of a task's time. Spark's worker looks for garbage after each task: not among modules.
    """
    gc.freeze()
    pa.set_cpu_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # not in others than glibc
        for what, size in _KEPT:
            libc.mallopt(what, size)
