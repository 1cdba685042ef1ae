"""Maintains the table `rejected`: the current values of state tables that do not fit the type of their column.

A state table has the current rows of one synced table. Where a value does not fit, its column is null; the value itself
stays in the column `_cells` and in `rejected`, which users can query. Merges and erasures call this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from lakehouse.catalogue import open_table, planned_files
from lakehouse.data_files import DataFile, divide_files, read_rows, rows_in
from lakehouse.merge.kernel import STORED
from lakehouse.merge.typed import MISFITS, misfits
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, REJECTED_PROPERTY, LakeNames, set_properties
from lakehouse.task_runner import in_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.table_definitions import StateTable

ROWS_PER_TASK = 500_000
"""Rows that one task reads, approximately."""

_CELLS = STORED.empty_table().select(["_gateway", "_row", "_cells"]).schema
"""The columns of a state table that are read."""
_COLUMNS = (
    "gateway string, table_name string COMMENT 'NAMESPACE.TABLE where it is not the shared one', row_id string, "
    "column_name string, type string COMMENT 'that it does not fit', value string COMMENT 'its JSON text'"
)
"""The columns of `rejected`."""


@lake_errors
def replace_rejected(spark: SparkSession, table: StateTable, snapshot: int, names: LakeNames = NAMES) -> int:
    """Replace a state table's rows in `rejected` by the values of a snapshot that do not fit, and return their number.

    The number is also stored as a property of the state table.

    Args:
        spark: an open Spark session.
        table: the state table.
        snapshot: id of the state table's snapshot to read.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached; the next merge that writes the table repeats it.
    """
    called = names.qualified_name(table.table)
    if not spark.catalog.tableExists(names.rejected):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {names.rejected} ({_COLUMNS}) USING iceberg PARTITIONED BY (table_name)")
    rows = _misfits(spark, table, snapshot).select(
        sf.col("_gateway").alias("gateway"),
        sf.lit(called).alias("table_name"),
        sf.col("_row").alias("row_id"),
        sf.col("column").alias("column_name"),
        "type",
        "value",
    )
    of_table = sf.col("table_name") == called
    rows.writeTo(names.rejected).overwrite(of_table)
    count = spark.table(names.rejected).where(of_table).count()
    set_properties(spark, table.name, {REJECTED_PROPERTY: str(count)})
    return count


def _misfits(spark: SparkSession, table: StateTable, snapshot: int) -> DataFrame:
    """Return the values of a snapshot that do not fit their columns, in the columns `MISFITS`. Tasks find them."""
    with open_table(spark, table.name) as opened:
        files = [DataFile.of(task) for task in planned_files(opened, snapshot)]
    parts, columns = divide_files(files, max(ROWS_PER_TASK, rows_in(files) // 256)), table.columns

    def part(number: int) -> Iterator[pa.RecordBatch]:
        for file in parts[number]:
            for rows in read_rows(file, _CELLS):
                yield from misfits(rows, columns).combine_chunks().to_batches()

    return in_tasks(spark, len(parts), part, ", ".join(f"{name} string" for name in MISFITS.names))
