"""Work in numbered parts: done by Spark's tasks, or by this process where Spark would take longer to begin."""

from __future__ import annotations

import ctypes
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
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

ROWS_HERE = 20_000
"""Deltas, or rows, up to which this process does it."""


def told(spark: SparkSession, count: int, part: Part, schema: pa.Schema, ddl: str, *, here: bool) -> pa.Table:
    """What the parts `0..count-1` tell.

    Args:
        spark: a session, of which nothing is asked `here`.
        count: how many there are.
        part: what one does.
        schema: of what it tells.
        ddl: the same as Spark has it.
        here: whether this process does them, in threads.
    """
    if here:
        with ThreadPoolExecutor(max(1, min(count, os.cpu_count() or 1))) as threads:
            parts = list(threads.map(lambda number: list(part(number)), range(count)))
        return pa.Table.from_batches(chain.from_iterable(parts), schema)
    return in_tasks(spark, count, part, ddl).toArrow()


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
