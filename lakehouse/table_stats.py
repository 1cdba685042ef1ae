"""Reads the size of an Iceberg table from its metadata. `assets.run_metrics` reports it as metadata of assets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakehouse.catalogue import open_table
from lakehouse.spark_errors import lake_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


class TableSize(msgspec.Struct, frozen=True):
    """Totals of a table, from the summary of its newest snapshot."""

    rows: int = 0
    """Number of rows as `count(*)` counts them. State tables keep deleted rows too."""
    data_files: int = 0
    delete_files: int = 0
    """Files that mark rows of data files as deleted, until these are rewritten without them."""
    bytes: int = 0
    """Bytes of the data and delete files."""


@lake_errors
def table_size(spark: SparkSession, name: str) -> TableSize:
    """Return a table's rows, files and bytes; zeros for an empty table.

    Args:
        spark: an open Spark session.
        name: the table's full, quoted name.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    summary = _summary(spark, name)

    def total(what: str) -> int:
        return int(summary.get(f"total-{what}", 0))

    rows = total("records") - total("position-deletes")
    return TableSize(rows, total("data-files"), total("delete-files"), total("files-size"))


def _summary(spark: SparkSession, name: str) -> Mapping[str, str]:
    """Return the summary of the newest snapshot; empty for a table without snapshots."""
    with open_table(spark, name) as table:
        current = table.current_snapshot()
    return current.summary.additional_properties if current is not None and current.summary is not None else {}
