"""The commit that puts rows in place of others: Spark's, on top of the snapshot that was read, or not at all."""

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
    """Replace the rows of a condition, which Iceberg refuses where others have written such rows meanwhile.

    Args:
        rows: those that are to be there; the condition holds for each.
        name: of the table, quoted.
        where: which rows of the table they replace.
        snapshot: the table's snapshot that was read; None where it had none.
        batch: names the commit in the summary of its snapshot.
        options: further ones of the writer.

    Raises:
        PySparkException: what Spark or the catalogue raised; whether it was committed, the table says.
    """
    writer = rows.writeTo(name).option("isolation-level", "serializable").options(**options or {})
    if batch is not None:
        writer = writer.option(f"snapshot-property.{BATCH_PROPERTY}", batch)
    if snapshot is not None:  # without one, Iceberg validates against all of the table's history
        writer = writer.option("validate-from-snapshot-id", str(snapshot))
    writer.overwrite(where)
