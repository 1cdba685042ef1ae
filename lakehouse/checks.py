"""What must be equal, and what must be unique, in the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.catalogue import iceberg_table
from lakehouse.history.ledger import id_sums, id_sums_of
from lakehouse.small_reads import few_rows
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, REJECTED_PROPERTY, LakeNames, ensure_deltas, read_version
from lakesync.hlc import COUNTER_BITS, MAX_DRIFT_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import date
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.store import PipelineStore


_STAMPED = pa.schema(
    [(name, pa.string()) for name in ("gateway", "client_id", "delta_id")]
    + [(name, pa.int64()) for name in ("hlc", "arrival")]
)


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


class FutureDelta(msgspec.Struct, frozen=True):
    """A delta that is stamped further ahead of its arrival than a gateway lets pass."""

    gateway: str
    client_id: str
    delta_id: str
    ahead_ms: int


class UnfitValue(msgspec.Struct, frozen=True):
    """A live value that its column cannot hold, so that the state table has null there."""

    gateway: str
    key: str
    """Row id and column."""
    type: str
    """Of the column."""


@lake_errors
def ledger_against_lake(
    spark: SparkSession, store: PipelineStore, names: LakeNames = NAMES, days: Collection[date] | None = None
) -> list[LedgerDifference]:
    """The days, among `days` or all, on which what staging says is flushed is not what `deltas` holds.

    Empty when all agree. What was flushed and not yet confirmed shows as a difference, so ask when no flush runs.
    """
    lake = {
        (row["gateway"], row["day"].isoformat()): (int(row["count"]), int(row["total"]))
        for row in _sums(spark, names, days)
    }
    asked = None if days is None else {day.isoformat() for day in days}
    ledger = {
        (day.gateway, day.day): (day.flushed_count, day.flushed_id_sum)
        for gateway in store.gateways()
        for day in store.ledger(gateway)
        if asked is None or day.day in asked
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
    key = ["_gateway", "_row"]
    few = few_rows(spark, names.state(table), _strings(key))
    return _duplicates(few if few is not None else spark.table(names.state(table)), key, limit)


@lake_errors
def duplicate_deltas(
    spark: SparkSession, names: LakeNames = NAMES, limit: int = 100, days: Collection[date] | None = None
) -> list[DuplicateKey]:
    """Deltas of one client that `deltas`, or `days` of it, holds more than once."""
    key = ["gateway", "client_id", "delta_id"]
    few = _few(spark, names, _strings(key), days)
    return _duplicates(few if few is not None else _deltas(spark, names, days), key, limit)


@lake_errors
def future_deltas(
    spark: SparkSession, names: LakeNames = NAMES, limit: int = 100, days: Collection[date] | None = None
) -> list[FutureDelta]:
    """Deltas whose clock is further ahead of the gateway's than is allowed: such a one would win for as long."""
    few = _few(spark, names, _STAMPED, days)
    if few is not None:
        behind, ahead_of = (pc.shift_right(few[name], COUNTER_BITS) for name in ("arrival", "hlc"))
        few = few.append_column("ahead", pc.subtract(ahead_of, behind))
        rows = few.filter(pc.greater(few["ahead"], MAX_DRIFT_MS)).slice(0, limit).to_pylist()
        return [FutureDelta(row["gateway"], row["client_id"], row["delta_id"], row["ahead"]) for row in rows]
    wall = [sf.shiftright(sf.col(name), COUNTER_BITS) for name in ("hlc", "arrival")]
    ahead = _deltas(spark, names, days).select("gateway", "client_id", "delta_id", (wall[0] - wall[1]).alias("ahead"))
    found = ahead.where(sf.col("ahead") > MAX_DRIFT_MS).limit(limit).collect()
    return [FutureDelta(row["gateway"], row["client_id"], row["delta_id"], row["ahead"]) for row in found]


@lake_errors
def unfit_values(spark: SparkSession, table: str, names: LakeNames = NAMES, limit: int = 100) -> list[UnfitValue]:
    """Values of a state table that are in `rejected`; where the table counts none, that is all that is read."""
    with iceberg_table(spark, names.state(table)) as found:
        properties = found.properties if found is not None else read_version(spark, names.state(table)).properties
    if int(properties.get(REJECTED_PROPERTY, "0")) == 0:
        return []
    columns = ["gateway", "row_id", "column_name", "type", "table_name"]
    few = few_rows(spark, names.rejected, _strings(columns))
    rows: list[dict[str, Any]]
    if few is not None:
        rows = few.filter(pc.equal(few["table_name"], names.called(table))).slice(0, limit).to_pylist()
    else:
        of_table = spark.table(names.rejected).where(sf.col("table_name") == names.called(table))
        rows = of_table.limit(limit).select(*columns).toArrow().to_pylist()
    unfit = (UnfitValue(row["gateway"], f"{row['row_id']} {row['column_name']}", row["type"]) for row in rows)
    return sorted(unfit, key=lambda one: (one.gateway, one.key))


def _sums(spark: SparkSession, names: LakeNames, days: Collection[date] | None) -> Iterable[Mapping[str, Any]]:
    """Rows of count and sum of ids, a gateway and day."""
    by = ["gateway", "day"]
    few = _few(
        spark, names, pa.schema([("gateway", pa.string()), ("day", pa.date32()), ("delta_id", pa.string())]), days
    )
    if few is None:
        return [row.asDict() for row in id_sums(_deltas(spark, names, days), by).collect()]
    found = id_sums_of(few.to_batches(), by)
    return found.to_pylist() if found is not None else []


def _few(spark: SparkSession, names: LakeNames, schema: pa.Schema, days: Collection[date] | None) -> pa.Table | None:
    ensure_deltas(spark, names)
    return few_rows(spark, names.deltas, schema, days)


def _deltas(spark: SparkSession, names: LakeNames, days: Collection[date] | None) -> DataFrame:
    rows = spark.table(names.deltas)
    return rows if days is None else rows.where(sf.col("day").isin(*days))


def _duplicates(rows: DataFrame | pa.Table, key: list[str], limit: int) -> list[DuplicateKey]:
    if isinstance(rows, pa.Table):
        counted = rows.group_by(key).aggregate([([], "count_all")]).rename_columns([*key, "count"])
        found = counted.filter(pc.greater(counted["count"], 1)).slice(0, limit).to_pylist()
    else:
        found = rows.groupBy(*key).count().where(sf.col("count") > 1).limit(limit).collect()
    return [DuplicateKey(row[key[0]], " ".join(row[name] for name in key[1:]), row["count"]) for row in found]


def _strings(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])
