"""Replaces rows of an Iceberg table with Spark's writer, validated from the snapshot that the caller read.

Iceberg rejects the commit if another writer has changed the replaced rows since that snapshot, so two runs cannot
overwrite each other's rows. Flushes, merges, landings and erasures commit with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakehouse.table_definitions import BATCH_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame


PARTITION_AFTER_PARTITION = {"use-table-distribution-and-ordering": "false", "fanout-enabled": "false"}
"""Options of a writer for rows that each task has in the order of their partitions.

A task then has one open file instead of one for each partition, whose buffers would fill the JVM's heap. Spark raises
an error if rows of a partition come after those of another."""


def overwrite(
    rows: DataFrame,
    name: str,
    where: Column,
    snapshot: int | None,
    batch: str | None = None,
    *,
    options: Mapping[str, str] | None = None,
) -> None:
    """Replace the rows that meet a condition. Iceberg rejects it if others have written such rows since `snapshot`.

    Args:
        rows: the new rows, all of which must meet the condition.
        name: the table's full, quoted name.
        where: the condition for the rows to replace.
        snapshot: id of the snapshot that the caller read; None if the table was empty.
        batch: an id of the commit, stored in the summary of its snapshot; None to store none.
        options: further options of Spark's writer.

    Raises:
        PySparkException: the error of Spark or the catalogue. Only the table shows whether the rows were committed.
    """
    writer = rows.writeTo(name).option("isolation-level", "serializable").options(**options or {})
    if batch is not None:
        writer = writer.option(f"snapshot-property.{BATCH_PROPERTY}", batch)
    if snapshot is not None:  # without one, Iceberg validates against all of the table's history
        writer = writer.option("validate-from-snapshot-id", str(snapshot))
    writer.overwrite(where)
