"""The table `rejected`: live values that do not fit their column, where the state table has null, as they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from lakehouse.merge.project import rejected_values
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, REJECTED_PROPERTY, LakeNames, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import StateTable

_COLUMNS = (
    "gateway string, table_name string COMMENT 'NAMESPACE.TABLE where it is not the shared one', row_id string, "
    "column_name string, type string COMMENT 'that it does not fit', value string COMMENT 'its JSON text'"
)


@lake_errors
def keep_rejected(spark: SparkSession, table: StateTable, snapshot: int, names: LakeNames = NAMES) -> int:
    """Put what a state table's snapshot rejects in place of what is there of it; how many values.

    Raises:
        LakeUnavailableError: Spark is gone; the next merge that writes does it again.
    """
    called = names.called(table.table)
    if not spark.catalog.tableExists(names.rejected):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {names.rejected} ({_COLUMNS}) USING iceberg PARTITIONED BY (table_name)")
    found = rejected_values(at(spark, table.name, snapshot), table.columns)
    rows = found.select(
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
    spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('{REJECTED_PROPERTY}' = '{count}')")
    return count
