"""Runs numbered parts of work in tasks of Spark. All modules that read or write files in tasks call it."""

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
    """Returns the rows of the part with a number. It is sent to tasks as a pickle."""

_PARALLELISM = "spark.default.parallelism"
_KEPT = ((-3, 32 << 20), (-1, 64 << 20), (-2, 16 << 20))
"""glibc's M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD, in bytes."""


def in_tasks(
    spark: SparkSession, count: int, part: Part, schema: str | StructType, *, waiting: bool = False
) -> DataFrame:
    """Return the rows of numbered parts.

    Args:
        spark: an open Spark session.
        count: number of parts.
        part: returns the rows of a part, in a task.
        schema: schema of the rows.
        waiting: whether each part gets its own task, because it mostly waits for other systems and may hang. Otherwise
            the parts share one task for each core, so the memory of a task does not shrink.
    """
    tasks = count if waiting else min(count, cores(spark) or count)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield from part(number)

    return spark.range(0, count, 1, max(1, tasks)).mapInArrow(run, schema)


def cores(spark: SparkSession) -> int | None:
    """Return the number of cores of the embedded server; None for a cluster."""
    found = spark.conf.get(_PARALLELISM, None)
    return int(found) if found is not None else None


@cache
def prepare_worker() -> None:
    """Let a worker process use one core, and keep freed memory for its next allocations.

    The kernel clears a returned page before it is used again, which takes up to a third of a task's time with
    pyarrow's allocator and glibc's defaults. Frozen modules make the garbage collection after each task quick.
    """
    gc.freeze()
    pa.set_cpu_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc only
        for what, size in _KEPT:
            libc.mallopt(what, size)
