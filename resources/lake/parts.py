"""Work in parts, each done by a task of Spark that is given its number alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession


def in_tasks(spark: SparkSession, parts: int, make: Callable[[int], Iterable[pa.RecordBatch]], schema: str) -> pa.Table:
    """What `make` gives for every number below `parts`, collected.

    Args:
        make: goes to the tasks; what it holds can be pickled.
        schema: of what it gives, as Spark spells it.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from make(part)

    return spark.range(0, parts, 1, parts).mapInArrow(run, schema).toArrow()
