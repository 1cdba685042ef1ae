"""Which tables a gateway's clients write to, registered or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from lakehouse.history.decoding import day_of
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@lake_errors
def tables_named(spark: SparkSession, gateway: str, after: int, upto: int, names: LakeNames = NAMES) -> set[str]:
    """Return the tables that a gateway's deltas in a range of arrivals name.

    Args:
        spark: a session.
        gateway: its id.
        after: the range begins above this arrival.
        upto: and ends with this one.
        names: the lake's names.
    """
    deltas = spark.table(names.deltas).where(
        (sf.col("gateway") == gateway)
        & sf.col("arrival").between(after + 1, upto)
        & sf.col("day").between(day_of(after), day_of(upto))
    )
    return {row["table_name"] for row in deltas.select("table_name").distinct().collect()}
