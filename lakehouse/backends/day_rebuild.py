"""Rewrites days of a destination from the lake, if a comparison has found a difference there.

A destination is a database or object store that receives the lake's deltas (changes of rows); its *cold tiers* are
other backends, to which its old deltas are moved. A gateway is one app's stream of deltas. A destination's mark is the
arrival (the gateway's timestamp) of the newest delta that it has of each stream, `GATEWAY/SHARD`: a gateway's deltas in
one staging store. Its *follower* reads the history and writes to it.

A flush writes deltas to the lake's history in batches, and destinations store them by batch. So each batch that has
deltas of a day is rewritten as a whole, by a Spark task for each day. The assets of destinations
(`assets.destinations`) call `rebuild_days`, if an operator asks for it.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.backends.adapter_tasks import one_report_each, open_backends
from lakehouse.backends.comparison import received_deltas, scope_of
from lakehouse.history.ordered import ArrivalRange, arrival_ranges, in_order
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import open_table
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import LakeNames
from lakesync.adapters.arrow_access import fence_writes, max_writers
from lakesync.adapters.base import StateWriter
from lakesync.adapters.composite import cold_tier_contents
from lakesync.adapters.digests import day_number
from lakesync.adapters.transfer.follower import HISTORY_COLUMNS, FollowerProgress, read_follower_progress
from lakesync.adapters.transfer.restore import restore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    from pyspark.sql import SparkSession

    from lakehouse.backends.destinations import Follower


def rebuild_days(spark: SparkSession, follower: Follower, days: Sequence[date], names: LakeNames) -> dict[date, int]:
    """Rewrite days of a destination from the lake, up to its mark, and return day → number of written deltas.

    Afterwards the destination has the lake's deltas of these days, and `comparison.compare` finds no difference, unless
    other programs have put objects beside the destination's own. A flush batch with deltas of other days too is
    rewritten as a whole.

    Args:
        spark: an open Spark session.
        follower: the destination's follower.
        days: UTC days of arrival.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        AdapterError: the destination cannot be reached; repeat the rebuild.
        LakeUnavailableError: Spark cannot be reached.
    """
    with closing(follower.open()) as adapter:
        reached = read_follower_progress(adapter, follower.name, follower.selection)
        writers = max_writers(adapter)
    tasks = [_rebuild_task(spark, follower, reached, day, names) for day in days]
    written: dict[date, int] = {}
    for concurrent in concurrent_tasks(tasks, writers):
        reports = one_report_each(spark, concurrent, RebuildReport)
        written |= {task.day: report.deltas for task, report in zip(concurrent, reports, strict=True)}
    return written


class RebuildReport(msgspec.Struct, frozen=True):
    """What the rebuild of a day wrote."""

    deltas: int
    """Number of deltas."""


class RebuildTask(NamedTuple):
    """The Spark task that rewrites one day of a destination."""

    follower: Follower
    ranges: Sequence[ArrivalRange]
    """Ranges of arrivals, with the files of the history that have them."""
    after: Mapping[str, int]
    """`GATEWAY/SHARD` → the arrival after which deltas are read."""
    until: Mapping[str, int]
    """`GATEWAY/SHARD` → the last arrival that is read."""
    batches: frozenset[str]
    """Ids of the flush batches to write."""
    day: date
    """UTC day of arrival."""

    def run(self) -> Iterator[RebuildReport]:
        """Write the batches one by one, and yield one report.

        Written deltas replace stored ones; deltas of the day that the lake lacks are deleted. Deltas that are in a cold
        tier are not written to the destination again. `restore` reads them there (`cold_tier_contents`), because it
        merges the rows of destination tables from all deltas.
        """
        follower = self.follower
        with ExitStack() as open_adapters:
            adapter = open_adapters.enter_context(closing(follower.open()))
            fence_writes(adapter, f"{follower.name} {self.day}")
            cold = open_backends(follower.target.cold, open_adapters)
            schemas = follower.schemas if isinstance(adapter, StateWriter) else ()
            scope = scope_of(follower, schemas, [day_number(self.day)])
            batches = pa.array(sorted(self.batches), pa.string())
            history = (
                batch.filter(pc.is_in(batch.column("batch_id"), batches))
                for batch in in_order(self.ranges, self.after, self.until, follower.selection, HISTORY_COLUMNS)
            )
            not_empty = (batch for batch in history if batch.num_rows)
            yield RebuildReport(restore(adapter, follower.name, not_empty, scope, cold, cold_tier_contents(cold)))


def concurrent_tasks(tasks: Sequence[RebuildTask], writers: int) -> list[list[RebuildTask]]:
    """Divide tasks into groups that run one after another. No two tasks of a group write the same batch.

    Two transactions that write the same deltas at once may deadlock.

    Args:
        tasks: the tasks. A batch that was flushed around midnight belongs to two days, and so to two tasks.
        writers: the most tasks in a group.
    """
    groups: list[list[RebuildTask]] = []
    for task in tasks:
        free = (
            group
            for group in groups
            if len(group) < writers and all(task.batches.isdisjoint(other.batches) for other in group)
        )
        group = next(free, None)
        if group is None:
            groups.append([task])
        else:
            group.append(task)
    return groups


@lake_errors
def _rebuild_task(
    spark: SparkSession, follower: Follower, reached: FollowerProgress, day: date, names: LakeNames
) -> RebuildTask:
    """Return the task that rewrites one day: its flush batches, and the arrivals of their deltas."""
    version = ensure_deltas(spark, names)
    deltas = received_deltas(spark, reached, names)
    # the history is partitioned by `day`, the UTC day of the arrival
    of_day = deltas.where(sf.col("day") == sf.lit(day.isoformat()).cast("date"))
    batches = of_day.select("batch_id").distinct()
    arrivals_of_batches = (
        deltas.join(sf.broadcast(batches), "batch_id")
        .groupBy("gateway", "shard", "batch_id")
        .agg(sf.min("arrival").alias("first"), sf.max("arrival").alias("last"))
        .collect()
    )
    after: dict[str, int] = {}
    until: dict[str, int] = {}
    for row in arrivals_of_batches:
        stream = f"{row['gateway']}/{row['shard']}"
        after[stream] = min(after.get(stream, row["first"] - 1), row["first"] - 1)
        until[stream] = max(until.get(stream, row["last"]), row["last"])
    ranges: list[ArrivalRange] = []
    if after and version.snapshot_id is not None:
        with open_table(spark, names.deltas) as table:
            ranges = arrival_ranges(table, version.snapshot_id, after, until)
    batch_ids = frozenset(row["batch_id"] for row in arrivals_of_batches)
    return RebuildTask(follower, ranges, after, until, batch_ids, day)
