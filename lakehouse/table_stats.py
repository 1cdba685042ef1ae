"""How large a table is, from its metadata alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakehouse.catalogue import open_table
from lakehouse.spark_errors import lake_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


class TableFigures(msgspec.Struct, frozen=True):
    """A table as its newest snapshot sums it up."""

    rows: int = 0
    """What `count(*)` says, deleted rows that a state table keeps included."""
    data_files: int = 0
    delete_files: int = 0
    bytes: int = 0
    """Of its data and delete files."""


@lake_errors
def figures(spark: SparkSession, name: str) -> TableFigures:
    """Return a table's rows, files and bytes; zeros while nothing was written.

    Args:
        spark: a session.
        name: the table's full, quoted name.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    summary = _summary(spark, name)

    def total(what: str) -> int:
        return int(summary.get(f"total-{what}", 0))

    rows = total("records") - total("position-deletes")
    return TableFigures(rows, total("data-files"), total("delete-files"), total("files-size"))


def _summary(spark: SparkSession, name: str) -> Mapping[str, str]:
    """Of the newest snapshot; empty where there is none."""
    with open_table(spark, name) as table:
        current = table.current_snapshot()
    return current.summary.additional_properties if current is not None and current.summary is not None else {}
