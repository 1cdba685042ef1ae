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

_KEPT = ((-3, 32 << 20), (-1, 64 << 20), (-2, 16 << 20))
"""glibc's M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD, in bytes."""


def in_tasks(spark: SparkSession, count: int, part: Part, schema: str | StructType) -> DataFrame:
    """What the parts make, in columns of a schema, each in a task of its own."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield from part(number)

    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, schema)


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
