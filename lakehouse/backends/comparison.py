"""Destinations compared with the lake, day by day and table by table, and days of them written again from it.

A destination adds up what it holds by itself, where it is a database, asked by a task; the lake's side is a query of
Spark. The step sees figures alone.
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
    """A destination took deltas during each attempt to add up what it holds."""


class Comparison(msgspec.Struct, frozen=True):
    """What a comparison of a destination with the lake found."""

    progress: FollowerProgress
    """Of the follower, up to which both were compared."""
    deltas_there: int
    deltas_in_lake: int
    rows_there: int
    rows_in_lake: int
    differences: list[Difference]
    set_aside: list[SuspendedTable]
    dead_letters: int
    """At most a thousand are counted."""

    @property
    def holds(self) -> bool:
        """Whether the destination has what the lake has."""
        return not self.differences and not self.set_aside


class Digested(msgspec.Struct, frozen=True):
    """What a destination tells of itself."""

    progress: FollowerProgress
    digests: list[Digest]
    tables: tuple[str, ...]
    """Of the tables of rows that it keeps."""
    set_aside: list[SuspendedTable] = []
    dead_letters: int = 0
    is_settled: bool = True
    """Whether the mark was the same afterwards; else the figures are of no one mark."""


class Digesting(NamedTuple):
    """Has a destination, and the cold tiers behind it, add up what they hold, at one mark."""

    follower: Follower
    days: tuple[int, ...] = ()

    def run(self) -> Iterator[Digested]:
        """Ask them.

        Raises:
            AdapterError: one cannot be read.
            ConfigurationError: one cannot add up what it holds.
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
                for place in cold:
                    found += _digests(place, replace(scope, schemas=()), leaf.name)
                is_settled = read_follower_progress(adapter, follower.name, follower.selection) == before
                if is_settled:
                    break
            asides = adapter.suspended_tables(follower.name) if isinstance(adapter, TableIsolation) else []
            letters = len(adapter.dead_letters(_LETTERS)) if isinstance(adapter, TableIsolation) else 0
            yield Digested(before, found, tuple(each.table for each in schemas), asides, letters, is_settled)


def scope_of(follower: Follower, schemas: Sequence[TableSchema], days: Sequence[int]) -> DigestScope:
    """Return what of a destination is compared.

    Args:
        follower: the destination's leaf.
        schemas: of its tables.
        days: UTC days of arrival, as days since 1970.
    """
    choice = follower.selection
    return DigestScope(choice.tables, choice.without, choice.gateways, tuple(schemas), tuple(days))


def compare(spark: SparkSession, follower: Follower, names: LakeNames = NAMES, days: Sequence[date] = ()) -> Comparison:
    """Compare what a destination holds with the lake, up to the destination's mark.

    Args:
        spark: a session.
        follower: the destination's leaf.
        names: of the lake.
        days: UTC days of arrival; empty: every day.

    Raises:
        AdapterError: the destination cannot be read.
        ConfigurationError: it cannot add up what it holds.
        DestinationMovedError: it took deltas during each attempt.
        LakeUnavailableError: Spark is gone.
    """
    numbers = tuple(map(day_number, days))
    (there,) = one_report_each(spark, [Digesting(follower, numbers)], Digested)
    if not there.is_settled:
        raise DestinationMovedError(
            f"{follower.leaf.name} took deltas during each of {_TRIES} attempts to add up what it holds: "
            "compare it again when its backlog is taken"
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
    """What a destination has to hold, by the lake's history up to the destination's mark.

    Args:
        spark: a session.
        reached: how far the destination is, and what it follows.
        tables: of the tables of rows, whether deleted rows stay in it.
        names: of the lake.
        days: since 1970; empty: every day.
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
    """The rows that the deltas make, by the merge's law of which row is visible."""
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


class Rebuilt(msgspec.Struct, frozen=True):
    """What a day's rebuild wrote."""

    deltas: int


class Rebuilding(NamedTuple):
    """What a task writes again: the batches of some days, whole."""

    follower: Follower
    found: Sequence[Stretch]
    after: Mapping[str, int]
    until: Mapping[str, int]
    batches: frozenset[str]
    days: tuple[int, ...]

    def run(self) -> Iterator[Rebuilt]:
        """Write them, batch by batch."""
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
            yield Rebuilt(restore(adapter, follower.name, some, scope, cold, ColdTierContents(cold)))


def rebuild(spark: SparkSession, follower: Follower, days: Sequence[date], names: LakeNames = NAMES) -> dict[date, int]:
    """Write days of a destination again from the lake, up to the destination's mark; deltas written, by day.

    Afterwards the destination has of these days what the lake has: `compare` finds no difference, except for objects
    that somebody else put beside the destination's own. Nothing of other days changes, but that batches which reach
    into them are written whole.

    Args:
        spark: a session.
        follower: the destination's leaf.
        days: UTC days of arrival.
        names: of the lake.

    Raises:
        AdapterError: the destination cannot be reached; a repeat is safe.
        LakeUnavailableError: Spark is gone.
    """
    adapter = follower.open()
    try:
        reached = read_follower_progress(adapter, follower.name, follower.selection)
        writers = max_writers(adapter)
    finally:
        adapter.close()
    works = [_planned(spark, follower, reached, day, names) for day in days]
    written: dict[date, int] = {}
    for start in range(0, len(works), writers):
        some = works[start : start + writers]
        for day, parts in zip(days[start : start + writers], on_executors(spark, some, Rebuilt), strict=True):
            written[day] = sum(part.deltas for part in parts)
    return written


@lake_errors
def _planned(
    spark: SparkSession, follower: Follower, reached: FollowerProgress, day: date, names: LakeNames
) -> Rebuilding:
    """A day's batches, and the arrivals between which they lie."""
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
    return Rebuilding(follower, found, after, until, frozenset(row["batch_id"] for row in spans), (number,))


def _digests(adapter: DatabaseAdapter, scope: DigestScope, name: str) -> list[Digest]:
    if not isinstance(adapter, Digestible):
        raise ConfigurationError(
            f"the adapter {name!r} ({type(adapter).__name__}) cannot add up what it holds: give it the method `digests`"
        )
    return list(adapter.digests(scope))


def _with_day(rows: DataFrame) -> DataFrame:
    return rows.withColumn("day", sf.expr(f"cast(arrival div {ARRIVALS_PER_DAY} as int)"))


def _on_days(rows: DataFrame, days: Sequence[int]) -> DataFrame:
    return rows.where(sf.col("day").isin(*days)) if days else rows
