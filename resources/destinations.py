"""Destinations follow `deltas`: one Spark task a leaf reads what it lacks and writes it, transaction by transaction.

What moves goes from the lake's files through an executor into the destination, a transaction's worth at a time; the
step's own process sees marks and counts alone. The task opens the files itself; where it cannot, Spark reads them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import functions as sf

from lakesync.adapters.following import (
    HISTORY,
    Choice,
    OlderRows,
    Standing,
    Taken,
    columns_shown,
    follow_history,
    standing,
)
from lakesync.adapters.places import Leaf
from lakesync.adapters.registry import as_database, open_adapter
from lakesync.exceptions import LakeSyncError
from lakesync.schema import TableSchema
from resources.lake.connection import lake_errors
from resources.lake.history.ordered import Stretch, in_order, reached, stretches
from resources.lake.tables import NAMES, LakeNames, at, ensure_deltas
from resources.tasks import failure, on_executors, opened, raise_failure
from transforms.decode import day_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

_TOLD = "deltas bigint, standing string, failure string"
_TOLD_ARROW = pa.schema([("deltas", pa.int64()), ("standing", pa.string()), ("failure", pa.string())])


class Follower(msgspec.Struct, frozen=True):
    """A leaf that follows, as a task is told of it."""

    name: str
    """Of its mark."""
    leaf: Leaf
    choice: Choice
    schemas: tuple[TableSchema, ...] = ()
    """Of the tables of rows that it keeps."""


class Followed(msgspec.Struct, frozen=True):
    """What a follower took."""

    deltas: int
    parts: int
    """Transactions, or batches."""
    standing: Standing
    history: dict[str, int]
    """`GATEWAY/SHARD` → how far the lake is."""

    @property
    def behind(self) -> bool:
        """Whether it lacks something of what the lake had when it began."""
        return any(self.standing.streams.get(name, -1) < arrival for name, arrival in self.history.items())


def follow(spark: SparkSession, follower: Follower, names: LakeNames = NAMES) -> Followed:
    """Bring a leaf up to what the lake holds now.

    Raises:
        AdapterError: the destination cannot be reached; what was taken stays, and a repeat goes on behind it.
        IntegrityError: another run follows for the same leaf, or it holds less than it was given.
        ConfigurationError: the adapter cannot be a destination.
        LakeUnavailableError: Spark is gone.
    """
    adapter = as_database(open_adapter(follower.leaf.uri))
    try:
        begun = standing(adapter, follower.name, follower.choice)
        shown = columns_shown(adapter, follower.schemas)
    finally:
        adapter.close()
    snapshot = ensure_deltas(spark, names).snapshot_id
    if snapshot is None:
        return Followed(0, 0, begun, {})
    wanted = follower.choice.gateways
    history = {
        name: arrival
        for name, arrival in streams(spark, snapshot, names).items()
        if not wanted or name.partition("/")[0] in wanted
    }
    lacking = {name: begun.streams.get(name, -1) for name in history if begun.streams.get(name, -1) < history[name]}
    if not lacking and shown == begun.shown:
        return Followed(0, 0, begun, history)
    told = _taken(spark, follower, snapshot, names, lacking, history)
    return Followed(sum(part.deltas for part in told), len(told), told[-1].standing if told else begun, history)


@lake_errors
def streams(spark: SparkSession, snapshot: int, names: LakeNames = NAMES) -> dict[str, int]:
    """`GATEWAY/SHARD` → the highest arrival of it in a snapshot of `deltas`, from the files' bounds where they tell."""
    known = reached(spark, names.deltas, snapshot)
    if known is not None:
        return known
    bounds = sf.col("readable_metrics")
    gateway, shard, arrival = bounds["gateway"], bounds["shard"], bounds["arrival"]
    pure = (gateway["lower_bound"] == gateway["upper_bound"]) & (shard["lower_bound"] == shard["upper_bound"])
    files = spark.read.option("versionAsOf", str(snapshot)).table(f"{names.deltas}.files")
    name = sf.concat_ws("/", gateway["lower_bound"], shard["lower_bound"])
    found = files.groupBy(sf.when(pure, name).alias("name")).agg(sf.max(arrival["upper_bound"]).alias("last")).collect()
    if any(row["name"] is None for row in found):
        name = sf.concat_ws("/", "gateway", "shard")
        rows = at(spark, names.deltas, snapshot)
        found = rows.groupBy(name.alias("name")).agg(sf.max("arrival").alias("last")).collect()
    return {row["name"]: row["last"] for row in found}


@lake_errors
def in_the_lake(spark: SparkSession, reached: Standing, names: LakeNames = NAMES) -> tuple[int, int]:
    """How many deltas of a follower's choice the lake has up to where it is, and the sum of their ids."""
    from transforms.ledger import id_sums

    if not reached.streams:
        return 0, 0
    last = _by_stream(reached.streams)
    rows = _chosen(spark.table(names.deltas), reached.choice)
    rows = rows.where(sf.col("arrival") <= sf.coalesce(last, sf.lit(-1)))
    (row,) = id_sums(rows).collect()
    return row["count"] or 0, int(row["total"] or 0)


def _by_stream(arrivals: Mapping[str, int]) -> Column:
    """A row's stream's entry."""
    entries = [part for name, arrival in arrivals.items() for part in (sf.lit(name), sf.lit(arrival))]
    return sf.create_map(*entries)[sf.concat_ws("/", "gateway", "shard")]


def _lacking(
    spark: SparkSession,
    snapshot: int,
    names: LakeNames,
    choice: Choice,
    lacking: Mapping[str, int],
    history: Mapping[str, int],
) -> DataFrame:
    """What a follower lacks, in one sorted partition that is spilled to disk where it is large."""
    whole = at(spark, names.deltas, snapshot)
    if not lacking:  # tables of rows alone are to be brought in line
        return whole.where(sf.lit(False)).select(*HISTORY).coalesce(1)
    first = min(lacking.values())
    days = (day_of(max(0, first)), day_of(max(history[name] for name in lacking)))
    gateways = sorted({name.partition("/")[0] for name in lacking})
    rows = _chosen(whole, choice).where(
        sf.col("gateway").isin(*gateways)
        & sf.col("day").between(*days)
        & (sf.col("arrival") > first)
        & (sf.col("arrival") > _by_stream(lacking))
    )
    place = ("gateway", "shard", "arrival", "seq", "ordinal")
    return rows.select(*HISTORY, "seq", "ordinal").coalesce(1).sortWithinPartitions(*place).select(*HISTORY)


def _chosen(rows: DataFrame, choice: Choice) -> DataFrame:
    if choice.tables:
        rows = rows.where(sf.col("table_name").isin(*choice.tables))
    if choice.without:
        rows = rows.where(~sf.col("table_name").isin(*choice.without))
    if choice.gateways:
        rows = rows.where(sf.col("gateway").isin(*choice.gateways))
    return rows


@lake_errors
def _taken(
    spark: SparkSession,
    follower: Follower,
    snapshot: int,
    names: LakeNames,
    lacking: Mapping[str, int],
    history: Mapping[str, int],
) -> list[Taken]:
    """Have a task take what is lacking; what it says of each part.

    Raises:
        LakeSyncError: as the task raised it.
    """
    found = stretches(spark, names.deltas, snapshot, lacking)
    if found is not None:
        return on_executors(spark, [_Reading(follower, found, lacking, history)], Taken)[0]
    shown = _lacking(spark, snapshot, names, follower.choice, lacking, history)
    rows = shown.mapInArrow(_Shown(follower, history), _TOLD).collect()
    raise_failure(row["failure"] for row in rows)
    return [Taken(row["deltas"], msgspec.json.decode(row["standing"], type=Standing)) for row in rows]


class _Reading(NamedTuple):
    """What the executor runs where it reads the history by itself."""

    follower: Follower
    found: Sequence[Stretch]
    lacking: Mapping[str, int]
    upto: Mapping[str, int]

    def run(self) -> Iterator[Taken]:
        history = in_order(self.found, self.lacking, self.follower.choice, HISTORY)
        return _take(self.follower, history, self.upto)


class _Shown:
    """What the executor runs where Spark shows it the history."""

    def __init__(self, follower: Follower, upto: Mapping[str, int]) -> None:
        self._follower = msgspec.json.encode(follower)
        self._upto = dict(upto)

    def __call__(self, history: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        follower = msgspec.json.decode(self._follower, type=Follower)
        batches = iter(history)
        try:
            for part in _take(follower, batches, self._upto):
                yield _row(part.deltas, msgspec.json.encode(part.standing).decode(), None)
        except LakeSyncError as error:
            yield _row(0, None, failure(error))
            for _ in batches:  # Spark waits until all of it was read
                pass


def _take(follower: Follower, history: Iterator[pa.RecordBatch], upto: Mapping[str, int]) -> Iterator[Taken]:
    with ExitStack() as closing:
        adapter = as_database(open_adapter(follower.leaf.uri))
        closing.callback(adapter.close)
        cold = opened(follower.leaf.cold, closing)
        yield from follow_history(
            adapter, follower.name, follower.choice, history, follower.schemas, OlderRows(cold), upto
        )


def _row(deltas: int, reached: str | None, failed: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"deltas": deltas, "standing": reached, "failure": failed}], schema=_TOLD_ARROW)


def choice_of(leaf: Leaf, gateways: Sequence[str]) -> Choice:
    """What a leaf follows."""
    return Choice(tuple(leaf.tables), tuple(leaf.without), tuple(sorted(gateways)))
