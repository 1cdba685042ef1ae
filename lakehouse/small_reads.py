"""Rows of a table that this process reads from its files where they are few: Spark would take longer to begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lakehouse.catalogue import iceberg_table
from lakehouse.data_files import DataFiles, read_files
from lakehouse.file_systems import is_readable
from lakesync.analysis.scans import both, holds

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import date

    from pyspark.sql import SparkSession

MOST = 500_000
"""Rows that are few."""

MOST_BYTES = 48 << 20
"""Of their files: what they say may be long."""


def few_rows(
    spark: SparkSession, name: str, schema: pa.Schema, days: Collection[date] | None = None
) -> pa.Table | None:
    """Columns of a table as it is now, deleted rows left out; None where they are not few, or only Spark can read them.

    Args:
        spark: a session.
        name: the table's full name, quoted.
        schema: of the columns.
        days: of a table that is partitioned by them, these alone.

    Raises:
        pyiceberg.exceptions.NoSuchTableError: there is no such table.
    """
    with iceberg_table(spark, name) as table:
        if table is None:
            return None
        if table.current_snapshot() is None:
            return schema.empty_table()
        where = both() if days is None else holds("day", "in", {day.isoformat() for day in days})
        tasks = list(table.scan(where, selected_fields=tuple(schema.names)).plan_files())
    files = DataFiles(
        tuple(task.file.file_path for task in tasks),
        tuple({deleted.file_path for task in tasks for deleted in task.delete_files}),
        sum(task.file.record_count for task in tasks),
    )
    if files.rows > MOST or sum(task.file.file_size_in_bytes for task in tasks) > MOST_BYTES:
        return None
    if not all(map(is_readable, (*files.data, *files.deletes))):
        return None
    return pa.concat_tables([schema.empty_table(), *read_files(files, schema)])
