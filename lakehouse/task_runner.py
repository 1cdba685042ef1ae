"""Runs numbered parts of some work in Spark tasks. All modules of `lakehouse` that work in tasks call it."""

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
    """Yields the rows of the part with a number. It is sent to tasks as a pickle."""

_PARALLELISM = "spark.default.parallelism"
"""Spark setting that `lakesync up` sets to the number of cores of the embedded server."""
_MALLOC_OPTIONS = ((-3, 32 << 20), (-1, 64 << 20), (-2, 16 << 20))
"""glibc's M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD, each with its value in bytes."""


def in_tasks(
    spark: SparkSession, count: int, part: Part, schema: str | StructType, *, waiting: bool = False
) -> DataFrame:
    """Return a DataFrame with the rows that all parts yield in tasks.

    Args:
        spark: an open Spark session.
        count: number of parts.
        part: yields the rows of the part with a number; called in a task.
        schema: schema of the rows.
        waiting: True to run each part in its own task, because it mostly waits for other systems and may hang.
            Otherwise the parts share as many tasks as there are cores, so that each task has more memory.
    """
    tasks = count if waiting else min(count, cores(spark) or count)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield from part(number)

    return spark.range(0, count, 1, max(1, tasks)).mapInArrow(run, schema)


def cores(spark: SparkSession) -> int | None:
    """Return the number of cores of the embedded Spark server; None for another server, which may be a cluster."""
    found = spark.conf.get(_PARALLELISM, None)
    return int(found) if found is not None else None


@cache
def prepare_worker() -> None:
    """Configure a Python worker for tasks: one core, and freed memory is kept for the next allocations.

    With pyarrow's allocator and glibc's defaults freed pages return to the kernel, which clears them before they are
    used again; that takes up to a third of a task's time. `gc.freeze` makes the garbage collection after each task
    quick.
    """
    gc.freeze()
    pa.set_cpu_count(1)
    pa.set_memory_pool(pa.system_memory_pool())
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc only
        for option, size in _MALLOC_OPTIONS:
            libc.mallopt(option, size)
