"""Work in numbered parts: done by Spark's tasks, or by this process where Spark would take longer to begin."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Part = Callable[[int], Iterator[pa.RecordBatch]]
    """What the part of a number makes; goes to tasks as a value."""

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
        here: whether this process does them, one after another.
    """
    if here:
        return pa.Table.from_batches(chain.from_iterable(map(part, range(count))), schema)
    return in_tasks(spark, count, part, ddl).toArrow()


def in_tasks(spark: SparkSession, count: int, part: Part, schema: str | StructType) -> DataFrame:
    """What the parts make, in columns of a schema, each in a task of its own."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield from part(number)

    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, schema)
