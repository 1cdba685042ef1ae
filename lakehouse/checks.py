"""Searches the lake for faults: lost and duplicate deltas, duplicate rows, and values that do not fit.

Accepted deltas (changes of rows) are first in staging, the gateways' store; a flush moves them to the history, the
Iceberg table `deltas`. A gateway is one app's stream of deltas; their *arrival* is its timestamp of receipt. Staging's
ledger has, for each gateway and day of arrival, the numbers of accepted and of flushed deltas, and the sums of their
ids; the history must have what was flushed. Staging has a log of pushes for each gateway and *shard* (a staging store
for some tables); an *epoch* identifies a store's copy of a gateway. A *state table* has the current rows of one synced
table, merged from the history. The asset checks (`assets.checks`), and the step that repeats past days
(`assets.lake_tables`), call this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql import functions as sf

from lakehouse.faults import Fault
from lakehouse.history.id_sums import id_sums
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import at_snapshot, read_version
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import REJECTED_PROPERTY, LakeNames
from lakesync.model.hlc import COUNTER_BITS, MAX_DRIFT_MS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import date

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from lakesync.staging.records import LedgerDay
    from lakesync.staging.store.pipeline import FlushStore


MAX_RESULTS = 100
"""The most results that a check returns."""
_KEY = ("gateway", "client_id", "delta_id")
"""Columns that identify a delta in the history."""


class _Log(NamedTuple):
    """A log of staging."""

    gateway: str
    shard: str
    epoch: int


class _PushRange(NamedTuple):
    """Pushes of a log, from the first to the last number."""

    gateway: str
    shard: str
    epoch: int
    first_seq: int
    last_seq: int


class _Sums(NamedTuple):
    """The deltas of a gateway that arrived on one day."""

    deltas: int
    """Their number."""
    id_sum: int
    """The sum of their ids, modulo 2**64."""


class LedgerDifference(Fault, frozen=True):
    """A gateway's day of arrival whose flushed deltas differ between staging's ledger and the lake."""

    day: str
    """`YYYY-MM-DD`, UTC."""
    ledger_count: int
    """Number of flushed deltas by the ledger."""
    lake_count: int
    """Number of deltas in the history."""
    ledger_id_sum: int
    """Sum of the ids of flushed deltas by the ledger, modulo 2**64."""
    lake_id_sum: int
    """Sum of the ids in the history, modulo 2**64."""


class DayCounts(msgspec.Struct, frozen=True):
    """Counts of the deltas of all gateways that arrived on one UTC day, in staging and in the lake."""

    day: str
    """`YYYY-MM-DD`."""
    acknowledged: int
    """Number of accepted deltas by the ledger."""
    unflushed: int
    """Number of those that the ledger does not record as flushed."""
    in_lake: int
    """Number of deltas in the history."""
    differing: tuple[str, ...]
    """The gateways whose deltas in the lake differ from those that the ledger records as flushed."""


class DuplicateKey(Fault, frozen=True):
    """A row or delta that is stored more than once."""

    key: str
    """Row id, or client id and delta id."""
    count: int
    """Number of copies."""


class FutureDelta(Fault, frozen=True):
    """A delta whose hlc, the client's timestamp, is further ahead of its arrival than a gateway accepts."""

    client_id: str
    delta_id: str
    ahead_ms: int
    """Milliseconds by which the hlc is ahead of the arrival."""


class UnfitValue(Fault, frozen=True):
    """A current value of a row that does not fit its column, so that the state table has null there."""

    key: str
    """Row id and column."""
    type: str
    """Schema type of the column."""


class HistoryFaults(msgspec.Struct, frozen=True):
    """The faults of the history; each list may be empty."""

    differences: list[LedgerDifference] = []
    duplicates: list[DuplicateKey] = []
    future: list[FutureDelta] = []


@lake_errors
def history_faults(
    spark: SparkSession, store: FlushStore, names: LakeNames, days: Collection[date] | None = None
) -> HistoryFaults:
    """Compare the history with staging's ledger, and search it for duplicates and future deltas, in one Spark job.

    Further jobs search for details only if it finds faults. Flushes may run meanwhile: batches that they have written
    since the ledger was read are not compared.

    Args:
        spark: an open Spark session.
        store: the staging store.
        names: catalogue and namespaces of the lake's tables.
        days: UTC days of arrival to check; None for all.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
        StagingUnavailableError: the ledger cannot be read.
    """
    ensure_deltas(spark, names)
    ledger, flushed = _ledger_with_flushed(store, days)  # read before the lake, which then has all of it
    deltas = _deltas(spark, names, days)
    marked = deltas.withColumn("future", _ms_ahead_of_arrival() > MAX_DRIFT_MS)
    keys = deltas.groupBy(sf.xxhash64(*_KEY).alias("key")).count().where(sf.col("count") > 1)
    # A union, so that one job computes both: counts and id sums by gateway, day and `future`, and one row with nulls
    # in these columns, whose count is the number of repeated keys.
    nulls = (f"CAST(NULL AS {kind})" for kind in ("string", "date", "boolean"))
    repeated_keys = keys.groupBy().count().selectExpr(*nulls, "count", "CAST(0 AS decimal(20,0))")
    rows = id_sums(marked, ["gateway", "day", "future"]).union(repeated_keys).collect()
    sums = [row for row in rows if row["gateway"] is not None]
    has_repeated_keys = any(row["count"] for row in rows if row["gateway"] is None)
    differences = _differing(_lake_sums(sums), ledger)
    if differences:  # perhaps only because a flush has written a batch since the ledger was read
        snapshot = read_version(spark, names.deltas).snapshot_id
        later = _later_pushes(store, flushed)  # read after the snapshot: they include its newest pushes
        if later and snapshot is not None:
            confirmed = _without_pushes(_deltas(spark, names, days, snapshot), later)
            differences = _differing(_lake_sums(id_sums(confirmed, ["gateway", "day"]).collect()), ledger)
    return HistoryFaults(
        differences[:MAX_RESULTS],
        duplicate_deltas(spark, names, days=days) if has_repeated_keys else [],
        future_deltas(spark, names, days=days) if any(row["future"] for row in sums) else [],
    )


@lake_errors
def days_against_lake(
    spark: SparkSession, store: FlushStore, days: Collection[date], names: LakeNames
) -> list[DayCounts]:
    """Compare staging's ledger with the lake on some days, and return counts for each. Call it while no flush runs.

    Args:
        spark: an open Spark session.
        store: the staging store.
        days: UTC days of arrival.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
        StagingUnavailableError: the ledger cannot be read.
    """
    ensure_deltas(spark, names)
    lake = _lake_sums(id_sums(_deltas(spark, names, days), ["gateway", "day"]).collect())
    ledger = _ledger(store, days)
    differences = _differing(lake, ledger)
    counts = []
    for day in sorted(each.isoformat() for each in days):
        of_day = [each for each in ledger.values() if each.day == day]
        acknowledged = sum(each.count for each in of_day)
        counts.append(
            DayCounts(
                day,
                acknowledged,
                acknowledged - sum(each.flushed_count for each in of_day),
                sum(sums.deltas for (_, lake_day), sums in lake.items() if lake_day == day),
                tuple(each.gateway for each in differences if each.day == day),
            )
        )
    return counts


@lake_errors
def duplicate_keys(spark: SparkSession, table: str, names: LakeNames) -> list[DuplicateKey]:
    """Return rows that a state table has more than once.

    Args:
        spark: an open Spark session.
        table: the state table's name.
        names: catalogue and namespaces of the lake's tables.
    """
    return _duplicates(spark.table(names.state(table)), ("_gateway", "_row"))


@lake_errors
def duplicate_deltas(spark: SparkSession, names: LakeNames, days: Collection[date] | None = None) -> list[DuplicateKey]:
    """Return deltas that the history has more than once, by gateway, client id and delta id.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        days: UTC days of arrival to read; None: all.
    """
    ensure_deltas(spark, names)
    return _duplicates(_deltas(spark, names, days), _KEY)


@lake_errors
def future_deltas(spark: SparkSession, names: LakeNames, days: Collection[date] | None = None) -> list[FutureDelta]:
    """Return deltas whose hlc is further ahead of their arrival than allowed. They win every merge until that time.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        days: UTC days of arrival to read; None: all.
    """
    ensure_deltas(spark, names)
    ahead = _deltas(spark, names, days).select(*_KEY, _ms_ahead_of_arrival().alias("ahead"))
    rows = ahead.where(sf.col("ahead") > MAX_DRIFT_MS).limit(MAX_RESULTS).collect()
    return [FutureDelta(*row) for row in rows]


@lake_errors
def unfit_values(spark: SparkSession, table: str, names: LakeNames) -> list[UnfitValue]:
    """Return the values of a state table that do not fit their columns. The table `rejected` lists them.

    No file is read if a property of the state table says that it has no such values.

    Args:
        spark: an open Spark session.
        table: the state table.
        names: catalogue and namespaces of the lake's tables.
    """
    if int(read_version(spark, names.state(table)).properties.get(REJECTED_PROPERTY, "0")) == 0:
        return []
    of_table = spark.table(names.rejected).where(sf.col("table_name") == names.qualified_name(table))
    rows = of_table.limit(MAX_RESULTS).select("gateway", "row_id", "column_name", "type").collect()
    return sorted(
        (UnfitValue(gateway, f"{row} {column}", kind) for gateway, row, column, kind in rows),
        key=lambda one: (one.gateway, one.key),
    )


def _lake_sums(rows: Sequence[Row]) -> dict[tuple[str, str], _Sums]:
    """Return (gateway, day) → the sums of the lake, by the rows of `id_sums`, of which several may have one key."""
    lake: dict[tuple[str, str], _Sums] = {}
    for row in rows:
        key = row["gateway"], row["day"].isoformat()
        sums = lake.get(key, _Sums(0, 0))
        lake[key] = _Sums(sums.deltas + row["count"], (sums.id_sum + int(row["total"])) % 2**64)
    return lake


def _ledger(store: FlushStore, days: Collection[date] | None) -> dict[tuple[str, str], LedgerDay]:
    """Return (gateway, day) → the entry of staging's ledger."""
    wanted = None if days is None else {day.isoformat() for day in days}
    return {
        (day.gateway, day.day): day
        for gateway in store.gateways()
        for day in store.ledger(gateway)
        if wanted is None or day.day in wanted
    }


def _ledger_with_flushed(
    store: FlushStore, days: Collection[date] | None
) -> tuple[dict[tuple[str, str], LedgerDay], dict[_Log, int]]:
    """Return the ledger, and for each log the number of the last push that the ledger has as flushed.

    The numbers are read before and after the ledger, until both are equal.
    """
    flushed = _flushed(store)
    while True:
        ledger = _ledger(store, days)
        before, flushed = flushed, _flushed(store)
        if flushed == before:  # else a batch was confirmed meanwhile
            return ledger, flushed


def _flushed(store: FlushStore) -> dict[_Log, int]:
    """Return the number of the last flushed push of each log."""
    return {_Log(each.gateway, each.shard, each.epoch): each.flushed_seq for each in store.backlog()}


def _later_pushes(store: FlushStore, flushed: Mapping[_Log, int]) -> list[_PushRange]:
    """Return the pushes of each log that were not flushed when `flushed` was read; no log without such pushes."""
    newest = {_Log(each.gateway, each.shard, each.epoch): each.last_seq for each in store.backlog()}
    ranges = [_PushRange(*log, flushed.get(log, 0) + 1, last) for log, last in newest.items()]
    return [each for each in ranges if each.first_seq <= each.last_seq]


def _without_pushes(deltas: DataFrame, pushes: Sequence[_PushRange]) -> DataFrame:
    """Return the rows of the history except those of some pushes."""
    columns = "gateway string, shard string, epoch bigint, first_seq bigint, last_seq bigint"  # of a `_PushRange`
    excluded = deltas.sparkSession.createDataFrame(pushes, columns)
    of_log = [deltas[name] == excluded[name] for name in ("gateway", "shard", "epoch")]
    is_excluded = deltas["seq"].between(excluded["first_seq"], excluded["last_seq"])
    return deltas.join(sf.broadcast(excluded), [*of_log, is_excluded], "left_anti")


def _differing(
    lake: Mapping[tuple[str, str], _Sums], ledger: Mapping[tuple[str, str], LedgerDay]
) -> list[LedgerDifference]:
    """Return the differences between the lake and the flushed deltas of the ledger, by gateway and day."""
    none = _Sums(0, 0)
    flushed = {key: _Sums(day.flushed_count, day.flushed_id_sum) for key, day in ledger.items()}
    return [
        LedgerDifference(gateway, day, in_ledger.deltas, in_lake.deltas, in_ledger.id_sum, in_lake.id_sum)
        for gateway, day in sorted(lake.keys() | flushed.keys())
        if (in_ledger := flushed.get((gateway, day), none)) != (in_lake := lake.get((gateway, day), none))
    ]


def _ms_ahead_of_arrival() -> Column:
    """Return the milliseconds by which a delta's hlc is ahead of its arrival."""
    return sf.shiftright("hlc", COUNTER_BITS) - sf.shiftright("arrival", COUNTER_BITS)


def _deltas(
    spark: SparkSession, names: LakeNames, days: Collection[date] | None, snapshot: int | None = None
) -> DataFrame:
    """Return the history's rows of some days, or with None of all days, in a snapshot, or with None in the newest."""
    rows = at_snapshot(spark, names.deltas, snapshot)
    return rows if days is None else rows.where(sf.col("day").isin(*days))


def _duplicates(rows: DataFrame, key: Sequence[str]) -> list[DuplicateKey]:
    """Return keys that more than one row has."""
    repeated = rows.groupBy(*key).count().where(sf.col("count") > 1).limit(MAX_RESULTS).collect()
    return [DuplicateKey(row[key[0]], " ".join(row[name] for name in key[1:]), row["count"]) for row in repeated]
