"""What must be equal, and what must be unique, in the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from resources.lake.connection import lake_errors
from resources.lake.tables import NAMES, LakeNames, ensure_deltas
from transforms.ledger import id_sum

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.store import PipelineStore


class LedgerDifference(msgspec.Struct, frozen=True):
    """A gateway's arrival day whose confirmed deltas differ between staging's ledger and the lake."""

    gateway: str
    day: str
    """`YYYY-MM-DD`."""
    ledger_count: int
    lake_count: int
    ledger_id_sum: int
    lake_id_sum: int


class DuplicateKey(msgspec.Struct, frozen=True):
    """A key that must be there once."""

    gateway: str
    key: str
    """Row id, or client id and delta id."""
    count: int


@lake_errors
def ledger_against_lake(spark: SparkSession, store: PipelineStore, names: LakeNames = NAMES) -> list[LedgerDifference]:
    """The days on which what staging says is flushed is not what `deltas` holds; empty when all agree.

    What was flushed and not yet confirmed shows as a difference, so ask when no flush runs.
    """
    ensure_deltas(spark, names)
    lake = {
        (row["gateway"], row["day"].isoformat()): (int(row["count"]), int(row["total"]))
        for row in spark.table(names.deltas)
        .groupBy("gateway", "day")
        .agg(sf.count(sf.lit(1)).alias("count"), id_sum("delta_id").alias("total"))
        .collect()
    }
    ledger = {
        (day.gateway, day.day): (day.flushed_count, day.flushed_id_sum)
        for gateway in store.gateways()
        for day in store.ledger(gateway)
    }
    nothing = (0, 0)
    return [
        LedgerDifference(gateway, day, here[0], there[0], here[1], there[1])
        for gateway, day in sorted(lake.keys() | ledger.keys())
        if (here := ledger.get((gateway, day), nothing)) != (there := lake.get((gateway, day), nothing))
    ]


@lake_errors
def duplicate_keys(spark: SparkSession, table: str, names: LakeNames = NAMES, limit: int = 100) -> list[DuplicateKey]:
    """Rows that a state table holds more than once."""
    return _duplicates(spark.table(names.state(table)), "_gateway", ["_row"], limit)


@lake_errors
def duplicate_deltas(spark: SparkSession, names: LakeNames = NAMES, limit: int = 100) -> list[DuplicateKey]:
    """Deltas of one client that `deltas` holds more than once."""
    ensure_deltas(spark, names)
    return _duplicates(spark.table(names.deltas), "gateway", ["client_id", "delta_id"], limit)


def _duplicates(rows: DataFrame, gateway: str, key: list[str], limit: int) -> list[DuplicateKey]:
    found = rows.groupBy(gateway, *key).count().where(sf.col("count") > 1).limit(limit).collect()
    return [DuplicateKey(row[gateway], " ".join(row[name] for name in key), row["count"]) for row in found]
