"""Compares destinations with the lake by table and day, and writes days of a destination again from the lake.

The assets and checks of destinations call it. A task has the destination compute its counts and checksums, a query of
Spark computes the lake's. Only these figures reach the driver.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace
from pyspark.sql import functions as sf

from lakehouse.backends.adapter_tasks import on_executors, one_report_each, open_backends
from lakehouse.backends.destinations import by_stream, chosen
from lakehouse.catalogue import open_table
from lakehouse.history.ordered import Stretch, in_order, stretches
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, ensure_deltas
from lakesync.adapters.arrow_access import max_writers
from lakesync.adapters.base import StateWriter
from lakesync.adapters.dead_letters import SuspendedTable, TableIsolation
from lakesync.adapters.digests import (
    ARRIVAL_MODULUS,
    ARRIVALS_PER_DAY,
    Difference,
    Digest,
    Digestible,
    DigestScope,
    day_number,
    diff_digests,
)
from lakesync.adapters.transfer.follower import (
    HISTORY_COLUMNS,
    ColdTierContents,
    FollowerProgress,
    read_follower_progress,
)
from lakesync.adapters.transfer.restore import restore
from lakesync.model.errors import ConfigurationError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.backends.destinations import Follower
    from lakesync.adapters.base import DatabaseAdapter
    from lakesync.model.schema import TableSchema

_TRIES = 5
_LETTERS = 1_000
_CHECKSUM = "cast(conv(substr(md5({}), 1, 8), 16, 10) as bigint)"
_SPELLED = (
    "concat('{', array_join(transform(map_entries(columns), e -> concat('\"', e.key, '\":', e.value)), ','), '}')"
)


class DestinationMovedError(TransientError):
    """A destination took deltas during each attempt to compute its digests."""


class Comparison(msgspec.Struct, frozen=True):
    """The result of comparing a destination with the lake."""

    progress: FollowerProgress
    """Progress of the follower, up to which both were compared."""
    deltas_there: int
    deltas_in_lake: int
    rows_there: int
    rows_in_lake: int
    differences: list[Difference]
    set_aside: list[SuspendedTable]
    dead_letters: int
    """Number of dead letters; 1,000 are counted at most."""

    @property
    def is_equal(self) -> bool:
        """Whether the destination has what the lake has."""
        return not self.differences and not self.set_aside


class DestinationDigests(msgspec.Struct, frozen=True):
    """The digests of a destination, computed at one mark."""

    progress: FollowerProgress
    digests: list[Digest]
    tables: tuple[str, ...]
    """Names of its destination tables."""
    set_aside: list[SuspendedTable] = []
    dead_letters: int = 0
    is_consistent: bool = True
    """Whether the mark was the same before and after. Otherwise the digests belong to no single mark."""


class DigestTask(NamedTuple):
    """The task that has a destination and its cold tiers compute their digests at one mark."""

    follower: Follower
    days: tuple[int, ...] = ()

    def run(self) -> Iterator[DestinationDigests]:
        """Compute the digests.

        Raises:
            AdapterError: an adapter cannot be read.
            ConfigurationError: an adapter does not support digests.
        """
        follower, leaf = self.follower, self.follower.leaf
        with ExitStack() as closing:
            adapter = follower.open()
            closing.callback(adapter.close)
            cold = open_backends(leaf.cold, closing)
            schemas = follower.schemas if isinstance(adapter, StateWriter) else ()
            scope = scope_of(follower, schemas, self.days)
            for _ in range(_TRIES):
                before = read_follower_progress(adapter, follower.name, follower.selection)
                found = _digests(adapter, scope, leaf.name)
                for tier in cold:
                    found += _digests(tier, replace(scope, schemas=()), leaf.name)
                is_consistent = read_follower_progress(adapter, follower.name, follower.selection) == before
                if is_consistent:
                    break
            suspended = adapter.suspended_tables(follower.name) if isinstance(adapter, TableIsolation) else []
            letters = len(adapter.dead_letters(_LETTERS)) if isinstance(adapter, TableIsolation) else 0
            yield DestinationDigests(
                before, found, tuple(each.table for each in schemas), suspended, letters, is_consistent
            )


def scope_of(follower: Follower, schemas: Sequence[TableSchema], days: Sequence[int]) -> DigestScope:
    """Return the scope of a comparison.

    Args:
        follower: the destination's follower.
        schemas: schemas of its destination tables.
        days: UTC days of arrival, as days since 1970.
    """
    choice = follower.selection
    return DigestScope(choice.tables, choice.without, choice.gateways, tuple(schemas), tuple(days))


def compare(spark: SparkSession, follower: Follower, names: LakeNames = NAMES, days: Sequence[date] = ()) -> Comparison:
    """Compare a destination with the lake, up to the destination's mark.

    Args:
        spark: an open Spark session.
        follower: the destination's follower.
        names: catalogue and namespaces of the lake's tables.
        days: UTC days of arrival; empty: every day.

    Raises:
        AdapterError: the destination cannot be read.
        ConfigurationError: its adapter does not support digests.
        DestinationMovedError: it took deltas during each attempt.
        LakeUnavailableError: Spark cannot be reached.
    """
    numbers = tuple(map(day_number, days))
    (there,) = one_report_each(spark, [DigestTask(follower, numbers)], DestinationDigests)
    if not there.is_consistent:
        raise DestinationMovedError(
            f"{follower.leaf.name} took deltas during each of {_TRIES} attempts to compute its digests; "
            "compare it again when it is up to date"
        )
    schemas = [each for each in follower.schemas if each.table in there.tables]
    lake = lake_digests(spark, there.progress, {each.table: each.soft_delete for each in schemas}, names, numbers)
    return Comparison(
        there.progress,
        sum(each.deltas for each in there.digests),
        sum(each.deltas for each in lake),
        sum(each.rows for each in there.digests),
        sum(each.rows for each in lake),
        diff_digests(lake, there.digests),
        there.set_aside,
        there.dead_letters,
    )


@lake_errors
def lake_digests(
    spark: SparkSession,
    reached: FollowerProgress,
    tables: Mapping[str, bool],
    names: LakeNames = NAMES,
    days: Sequence[int] = (),
) -> list[Digest]:
    """Return the digests that a destination must have, by the lake's history up to the destination's mark.

    Args:
        spark: an open Spark session.
        reached: the destination's progress and selection.
        tables: destination table → whether deleted rows stay in it.
        names: catalogue and namespaces of the lake's tables.
        days: days since 1970; empty: every day.
    """
    if not reached.streams:
        return []
    ensure_deltas(spark, names)
    deltas = chosen(spark.table(names.deltas), reached.selection)
    deltas = deltas.where(sf.col("arrival") <= sf.coalesce(by_stream(reached.streams), sf.lit(-1)))
    found = [
        Digest(row["table_name"], row["day"], deltas=row["count"], delta_sum=row["total"])
        for row in _on_days(_with_day(deltas), days)
        .withColumn("checksum", sf.expr(_CHECKSUM.format(f"concat_ws('|', delta_id, op, {_SPELLED})")))
        .groupBy("table_name", "day")
        .agg(sf.count("*").alias("count"), sf.sum("checksum").alias("total"))
        .collect()
    ]
    return [*found, *_lake_rows(deltas.where(sf.col("table_name").isin(*tables)), tables, days)] if tables else found


def _lake_rows(deltas: DataFrame, tables: Mapping[str, bool], days: Sequence[int]) -> list[Digest]:
    """Return the digests of the rows that the deltas merge to. Which row is visible follows from its newest stamps."""
    soft = [table for table, is_soft in tables.items() if is_soft]
    stamp = "struct(hlc, client_id)"
    writes = f"CASE WHEN op = 'INSERT' OR (op = 'UPDATE' AND size(columns) > 0) THEN {stamp} END"
    rows = deltas.groupBy("gateway", "table_name", "row_id").agg(
        sf.max("arrival").alias("arrival"),
        sf.max(sf.expr(writes)).alias("written"),
        sf.max(sf.expr(f"CASE WHEN op = 'DELETE' THEN {stamp} END")).alias("tombstone"),
    )
    rows = rows.withColumn("visible", sf.expr("written IS NOT NULL AND (tombstone IS NULL OR written > tombstone)"))
    is_shown = sf.col("visible")
    if soft:
        is_shown = is_shown | (sf.col("written").isNotNull() & sf.col("table_name").isin(*soft))
    summed = (
        _on_days(_with_day(rows.where(is_shown)), days)
        .withColumn("checksum", sf.expr(_CHECKSUM.format("concat(gateway, '/', row_id)")))
        .groupBy("table_name", "day")
        .agg(
            sf.count("*").alias("rows"),
            sf.sum(sf.expr("CASE WHEN visible THEN 0 ELSE 1 END")).alias("deleted"),
            sf.sum("checksum").alias("row_sum"),
            sf.sum(sf.expr(f"arrival % {ARRIVAL_MODULUS}")).alias("arrival_sum"),
        )
    )
    return [
        Digest(
            row["table_name"],
            row["day"],
            rows=row["rows"],
            deleted=row["deleted"],
            row_sum=row["row_sum"],
            arrival_sum=row["arrival_sum"],
        )
        for row in summed.collect()
    ]


class RebuildReport(msgspec.Struct, frozen=True):
    """What the rebuild of a day wrote."""

    deltas: int


class RebuildTask(NamedTuple):
    """The task that writes the batches of some days again, each as a whole."""

    follower: Follower
    found: Sequence[Stretch]
    after: Mapping[str, int]
    until: Mapping[str, int]
    batches: frozenset[str]
    days: tuple[int, ...]

    def run(self) -> Iterator[RebuildReport]:
        """Write the batches one by one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        follower = self.follower
        with ExitStack() as closing:
            adapter = follower.open()
            closing.callback(adapter.close)
            cold = open_backends(follower.leaf.cold, closing)
            schemas = follower.schemas if isinstance(adapter, StateWriter) else ()
            scope = scope_of(follower, schemas, self.days)
            batches = pa.array(sorted(self.batches), pa.string())
            history = (
                batch.filter(pc.is_in(batch.column("batch_id"), batches))
                for batch in in_order(self.found, self.after, self.until, follower.selection, HISTORY_COLUMNS)
            )
            some = (batch for batch in history if batch.num_rows)
            yield RebuildReport(restore(adapter, follower.name, some, scope, cold, ColdTierContents(cold)))


def rebuild(spark: SparkSession, follower: Follower, days: Sequence[date], names: LakeNames = NAMES) -> dict[date, int]:
    """Write days of a destination again from the lake, up to its mark, and return the number of deltas by day.

    Afterwards the destination has of these days what the lake has, and `compare` finds no difference, except for
    objects that others have put beside the destination's own. A batch that also has deltas of other days is written as
    a whole.

    Args:
        spark: an open Spark session.
        follower: the destination's follower.
        days: UTC days of arrival.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        AdapterError: the destination cannot be reached; repeat the rebuild.
        LakeUnavailableError: Spark cannot be reached.
    """
    adapter = follower.open()
    try:
        reached = read_follower_progress(adapter, follower.name, follower.selection)
        writers = max_writers(adapter)
    finally:
        adapter.close()
    tasks = [_rebuild_task(spark, follower, reached, day, names) for day in days]
    written: dict[date, int] = {}
    for start in range(0, len(tasks), writers):
        some = tasks[start : start + writers]
        for day, parts in zip(days[start : start + writers], on_executors(spark, some, RebuildReport), strict=True):
            written[day] = sum(part.deltas for part in parts)
    return written


@lake_errors
def _rebuild_task(
    spark: SparkSession, follower: Follower, reached: FollowerProgress, day: date, names: LakeNames
) -> RebuildTask:
    """Return the task for one day: its batches, and the range of arrivals that these have."""
    number = day_number(day)
    version = ensure_deltas(spark, names)
    deltas = chosen(spark.table(names.deltas), follower.selection)
    if reached.streams:
        deltas = deltas.where(sf.col("arrival") <= sf.coalesce(by_stream(reached.streams), sf.lit(-1)))
    else:
        deltas = deltas.where("false")
    of_day = deltas.where(sf.col("day") == sf.lit(day.isoformat()).cast("date"))
    batches = of_day.select("batch_id").distinct()
    spans = (
        deltas.join(sf.broadcast(batches), "batch_id")
        .groupBy("gateway", "shard", "batch_id")
        .agg(sf.min("arrival").alias("first"), sf.max("arrival").alias("last"))
        .collect()
    )
    after: dict[str, int] = {}
    until: dict[str, int] = {}
    for row in spans:
        name = f"{row['gateway']}/{row['shard']}"
        after[name] = min(after.get(name, row["first"] - 1), row["first"] - 1)
        until[name] = max(until.get(name, row["last"]), row["last"])
    found: list[Stretch] = []
    if after and version.snapshot_id is not None:
        with open_table(spark, names.deltas) as table:
            found = stretches(table, version.snapshot_id, after, until)
    return RebuildTask(follower, found, after, until, frozenset(row["batch_id"] for row in spans), (number,))


def _digests(adapter: DatabaseAdapter, scope: DigestScope, name: str) -> list[Digest]:
    if not isinstance(adapter, Digestible):
        raise ConfigurationError(
            f"the adapter {name!r} ({type(adapter).__name__}) does not support digests: give it the method `digests`"
        )
    return list(adapter.digests(scope))


def _with_day(rows: DataFrame) -> DataFrame:
    return rows.withColumn("day", sf.expr(f"cast(arrival div {ARRIVALS_PER_DAY} as int)"))


def _on_days(rows: DataFrame, days: Sequence[int]) -> DataFrame:
    return rows.where(sf.col("day").isin(*days)) if days else rows
