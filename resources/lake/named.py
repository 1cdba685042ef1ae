"""Which tables a gateway's clients write to, registered or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from resources.lake.connection import lake_errors
from resources.lake.tables import NAMES, LakeNames
from transforms.decode import day_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@lake_errors
def tables_named(spark: SparkSession, gateway: str, after: int, upto: int, names: LakeNames = NAMES) -> set[str]:
    """The tables that the gateway's deltas with `after < arrival <= upto` name."""
    deltas = spark.table(names.deltas).where(
        (sf.col("gateway") == gateway)
        & sf.col("arrival").between(after + 1, upto)
        & sf.col("day").between(day_of(after), day_of(upto))
    )
    return {row["table_name"] for row in deltas.select("table_name").distinct().collect()}
