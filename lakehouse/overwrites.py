"""Replaces rows of an Iceberg table by Spark's writer, validated from the snapshot that was read.

Flushes, merges, landings and erasures commit with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse.table_definitions import BATCH_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame


PARTITION_AFTER_PARTITION = {"use-table-distribution-and-ordering": "false", "fanout-enabled": "false"}
"""Options of a writer for rows that each task has in the order of their partitions.

A task has one file open, not one for each partition: buffers of open files fill the heap, and every collection of
garbage copies them. Spark raises an error if a partition comes again."""


def overwrite(
    rows: DataFrame,
    name: str,
    where: Column,
    snapshot: int | None,
    batch: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
) -> None:
    """Replace the rows that meet a condition. Iceberg refuses it if others have written such rows meanwhile.

    Args:
        rows: the new rows, all of which meet the condition.
        name: the table's full, quoted name.
        where: the condition.
        snapshot: the snapshot that was read; None: the table was empty.
        batch: identifies the commit in its snapshot's summary.
        options: further options of the writer.

    Raises:
        PySparkException: the error of Spark or the catalogue. Only the table shows whether the rows were committed.
    """
    writer = rows.writeTo(name).option("isolation-level", "serializable").options(**options or {})
    if batch is not None:
        writer = writer.option(f"snapshot-property.{BATCH_PROPERTY}", batch)
    if snapshot is not None:  # without one, Iceberg validates against all of the table's history
        writer = writer.option("validate-from-snapshot-id", str(snapshot))
    writer.overwrite(where)
