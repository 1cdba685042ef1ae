"""Brings destinations up to date: Spark tasks write the deltas that a destination lacks, transaction by transaction.

A destination writes to one or more adapters (databases or object stores). Each adapter has a follower, which reads the
lake's history (the table `deltas`) in order. Its mark is stored at the adapter: for each stream (`GATEWAY/SHARD`) the
arrival up to which deltas are written. A gateway is one app's stream of deltas (changes of rows), a shard a staging
store for some of the tables. An arrival is the gateway's timestamp for a push; in a stream arrivals only grow; -1 is
below all. One task writes a small backlog. A large one becomes a load, which is divided into parts, one for each task
(`lakesync.adapters.transfer.loads`). Tasks read the lake's files themselves; the driver receives only marks, counts and
errors. A destination may have merged tables beside the deltas: its destination tables. One that cannot be written is
*suspended*: it gets no rows until a retry succeeds. The assets of destinations (`assets.destinations`) call `follow`.
`declared` creates the `Follower` of each declared adapter; `comparison` checks what it has written, and `day_rebuild`
writes days again.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakehouse.backends.adapter_tasks import on_executors, open_backends, task_slots
from lakehouse.history.ordered import ArrivalRange, arrival_ranges, in_order, latest_arrivals
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import open_table
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import NAMES, LakeNames
from lakesync.adapters.arrow_access import max_writers
from lakesync.adapters.backend_config import WriteTarget
from lakesync.adapters.base import SuspendedTable, SuspendsTables, is_retry_due
from lakesync.adapters.composite import cold_tier_contents
from lakesync.adapters.registry import as_database, open_adapter
from lakesync.adapters.transfer.follower import (
    HISTORY_COLUMNS,
    AppliedChunk,
    DeltaSelection,
    FollowerProgress,
    Load,
    follow_history,
    read_follower_progress,
)
from lakesync.adapters.transfer.loads import (
    begin_load,
    finish_load,
    is_announced,
    load_to_resume,
    part_name,
    withdraw_load,
)
from lakesync.adapters.transfer.table_rewrites import columns_of_tables
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakesync.adapters.base import DatabaseAdapter

_MAX_DEAD_LETTERS = 1_000
"""The most dead letters (values that a destination table cannot store) that are read."""
_MIN_DELTAS_PER_PART = 50_000
"""Deltas in one part of a load, at least."""


class Follower(msgspec.Struct, frozen=True):
    """Describes the follower of one adapter. The driver sends it to the tasks."""

    name: str
    """Name of the follower's mark at the adapter."""
    target: WriteTarget
    """The adapter's URI, and the tables that it receives."""
    selection: DeltaSelection
    """The tables and gateways whose deltas the adapter receives."""
    schemas: tuple[TableSchema, ...] = ()
    """Schemas of the destination tables, which have merged rows; empty to write deltas only."""

    def open(self) -> DatabaseAdapter:
        """Open the adapter.

        Raises:
            ConfigurationError, AdapterError: as `open_adapter`.
        """
        return as_database(open_adapter(self.target.uri))

    def dead_letters(self, adapter: DatabaseAdapter) -> Counter[str]:
        """Count the values that the destination tables cannot store, by gateway; 0 if the adapter does not record them.

        Args:
            adapter: the open adapter. Other destinations may write other tables there, whose values are not counted.
                Of the values of this destination, the first 1,000 are counted.

        Raises:
            AdapterError: the adapter cannot be read.
        """
        if not isinstance(adapter, SuspendsTables):
            return Counter()
        return Counter(each.gateway for each in adapter.dead_letters(_MAX_DEAD_LETTERS, self.selection))


class FollowReport(msgspec.Struct, frozen=True):
    """What a run has written to an adapter."""

    deltas: int
    """Number of deltas that were written."""
    transactions: int
    """Number of transactions; batches at an adapter without transactions."""
    tasks: int
    """Number of Spark tasks."""
    progress: FollowerProgress
    """The follower's mark after the run."""
    wanted: dict[str, int]
    """Stream (`GATEWAY/SHARD`) → the arrival up to which the run had to write."""
    days: dict[str, int] = {}
    """UTC day of arrival → number of deltas."""
    suspended: tuple[SuspendedTable, ...] = ()
    """Suspended destination tables: they could not be written, and are retried with growing pauses."""
    dead_letters: dict[str, int] = {}
    """Gateway → number of values that destination tables cannot store; 1,000 are counted at most."""

    @property
    def is_behind(self) -> bool:
        """Whether the follower lacks deltas that the run had to write."""
        return not self.progress.has_reached(self.wanted)


def follow(
    spark: SparkSession, follower: Follower, names: LakeNames = NAMES, through: int | None = None
) -> FollowReport:
    """Write to an adapter the deltas that it lacks. A repeat writes nothing twice.

    Args:
        spark: an open Spark session.
        follower: the adapter's follower.
        names: catalogue and namespaces of the lake's tables.
        through: the last arrival to write in every stream, unless a load in progress ends later. None for the newest
            in the lake.

    Returns:
        What was written. Of an adapter that suspends tables (`SuspendsTables`) it also has the suspended tables and
        the numbers of dead letters.

    Raises:
        AdapterError: the destination cannot be reached; a repeat continues after the last transaction.
        IntegrityError: another run writes for the same follower, or the adapter has fewer deltas than were written.
        ConfigurationError: the adapter cannot be a destination.
        LakeUnavailableError: Spark cannot be reached.
    """
    report = _write_missing(spark, follower, names, through)
    if report.is_behind:
        # A resumed load ends at the deltas that the lake had when the load began. Write the newer ones now.
        rest = _write_missing(spark, follower, names, through)
        report = replace(
            rest,
            deltas=report.deltas + rest.deltas,
            transactions=report.transactions + rest.transactions,
            tasks=report.tasks + rest.tasks,
            days=dict(Counter(report.days) + Counter(rest.days)),
        )
    with closing(follower.open()) as adapter:
        if not isinstance(adapter, SuspendsTables):
            return report
        suspended = tuple(adapter.suspended_tables(follower.name))
        return replace(report, suspended=suspended, dead_letters=dict(follower.dead_letters(adapter)))


class FollowTask(NamedTuple):
    """The Spark task that writes all deltas that an adapter lacks, or one part of a load. `on_executors` runs it."""

    follower: Follower
    ranges: Sequence[ArrivalRange]
    """The files of the history to read."""
    after: Mapping[str, int]
    """`GATEWAY/SHARD` → the arrival after which deltas are written."""
    until: Mapping[str, int]
    """`GATEWAY/SHARD` → the last arrival that is written."""
    load: Load | None = None
    """The load that is divided; None to write everything in this task."""
    number: int = 0
    """Number of this task's part of the load."""

    def run(self) -> Iterator[AppliedChunk]:
        """Write the deltas, and yield a report after each transaction.

        A part of a load has a mark of its own, so that a repeated task continues after its last transaction.

        Raises:
            AdapterError: the destination cannot be reached.
            IntegrityError: another run writes for the same follower.
        """
        name, selection = self.follower.name, self.follower.selection
        if self.load is not None:
            name, selection = part_name(name, self.number), replace(selection, part=self.load.part(self.number))
        with ExitStack() as open_adapters:
            adapter = self.follower.open()
            open_adapters.callback(adapter.close)
            # old deltas may have been moved to other backends (cold tiers); destination tables need them too
            cold = open_backends(self.follower.target.cold, open_adapters)
            older = cold_tier_contents(cold)
            progress = read_follower_progress(adapter, name, selection, self.after)
            after = {stream: max(low, progress.applied_up_to(stream)) for stream, low in self.after.items()}
            history = in_order(self.ranges, after, self.until, selection, HISTORY_COLUMNS)
            schemas = self.follower.schemas
            yield from follow_history(
                adapter, name, selection, history, schemas, older, self.until, since=self.after, cold=cold
            )


class _AdapterState(NamedTuple):
    """What a run must know of a follower's adapter."""

    progress: FollowerProgress
    """The follower's mark."""
    load: Load | None
    """The load in progress; None if no load is."""
    is_load_announced: bool
    """Whether a load was announced to readers. Without `load`, the process died before the load began."""
    has_current_columns: bool
    """Whether the rows of destination tables have the columns of the schemas; otherwise the tables are rewritten."""
    is_retry_due: bool
    """Whether a suspended table is to be written again now."""
    max_writers: int
    """Number of tasks up to which parallel writing is faster."""

    @property
    def has_other_work(self) -> bool:
        """Whether a run is needed even if the adapter lacks no deltas."""
        return self.is_load_announced or self.is_retry_due or not self.has_current_columns


def _adapter_state(follower: Follower) -> _AdapterState:
    """Read the state of a follower's adapter."""
    with closing(follower.open()) as adapter:
        progress = read_follower_progress(adapter, follower.name, follower.selection)
        suspended = adapter.suspended_tables(follower.name) if isinstance(adapter, SuspendsTables) else []
        return _AdapterState(
            progress,
            load_to_resume(adapter, progress, follower.schemas),
            is_announced(adapter, follower.name),
            has_current_columns=columns_of_tables(adapter, follower.schemas) == progress.row_columns,
            is_retry_due=any(is_retry_due(each.retry_ms, wall_clock()) for each in suspended),
            max_writers=max_writers(adapter),
        )


def _write_missing(spark: SparkSession, follower: Follower, names: LakeNames, through: int | None) -> FollowReport:
    """Write the deltas that an adapter lacks, or the rest of its load in progress; see `follow`."""
    state = _adapter_state(follower)
    start, load = state.progress, state.load
    # 1. Compare the adapter's mark with the newest arrivals in the lake.
    snapshot = ensure_deltas(spark, names).snapshot_id
    if snapshot is None:
        return FollowReport(deltas=0, transactions=0, tasks=0, progress=start, wanted={})
    newest = _latest_by_stream(spark, snapshot, names)
    wanted = {
        stream: last if through is None else min(last, through)
        for stream, last in newest.items()
        if follower.selection.has_gateway(stream.partition("/")[0])
    }
    until = load.until if load is not None else wanted
    written_up_to = {stream: start.applied_up_to(stream) for stream in until}
    after = {stream: arrival for stream, arrival in written_up_to.items() if arrival < until[stream]}
    if not after and not state.has_other_work:
        return FollowReport(deltas=0, transactions=0, tasks=0, progress=start, wanted=wanted)
    # 2. Plan the files to read; begin a load if several tasks should write them.
    ranges = _plan_ranges(spark, snapshot, names, after, until)
    if load is None:
        parts = _task_count(spark, ranges, after, state.max_writers)
        if parts > 1:
            ends = {stream: until[stream] for stream in after}
            load = _begin_load(spark, follower, start, ends, parts, has_current_columns=state.has_current_columns)
    # 3. Write the deltas, in one task or in those of the load.
    whole = FollowTask(follower, ranges, after, until)
    tasks = [whole] if load is None else [whole._replace(load=load, number=number) for number in range(load.parts)]
    written = [chunk for of_task in on_executors(spark, tasks, AppliedChunk) for chunk in of_task]
    # 4. Finish the load, or withdraw one that was announced and has not begun.
    reached = written[-1].progress if written and load is None else start
    if load is not None or state.is_load_announced:
        with closing(follower.open()) as adapter:
            if load is not None:
                reached = finish_load(adapter, follower.name, follower.selection)
            else:
                withdraw_load(adapter, follower.name)
    days = dict(sum((Counter(chunk.days) for chunk in written), Counter()))
    return FollowReport(reached.deltas - start.deltas, len(written), len(tasks), reached, wanted, days)


@lake_errors
def _latest_by_stream(spark: SparkSession, snapshot: int, names: LakeNames) -> dict[str, int]:
    """Return stream → its newest arrival in a snapshot of the history, from the column bounds of files."""
    with open_table(spark, names.deltas) as table:
        return latest_arrivals(table, snapshot)


@lake_errors
def _plan_ranges(
    spark: SparkSession, snapshot: int, names: LakeNames, after: Mapping[str, int], until: Mapping[str, int]
) -> list[ArrivalRange]:
    """Return the files of the history that have deltas later than `after`, up to `until`: stream → arrival."""
    with open_table(spark, names.deltas) as table:
        return arrival_ranges(table, snapshot, after, until)


@lake_errors
def _task_count(spark: SparkSession, ranges: Sequence[ArrivalRange], after: Mapping[str, int], writers: int) -> int:
    """Return the number of tasks that write a backlog, by its size and Spark's slots, and at most `writers`."""
    backlog = sum(each.deltas_beyond(after[each.stream]) for each in ranges)
    wanted = min(writers, backlog // _MIN_DELTAS_PER_PART)
    return min(wanted, task_slots(spark)) if wanted > 1 else 1


def _begin_load(
    spark: SparkSession,
    follower: Follower,
    start: FollowerProgress,
    until: Mapping[str, int],
    parts: int,
    *,
    has_current_columns: bool,
) -> Load:
    """Begin a load with some number of parts, which reads each stream up to its arrival in `until`.

    If the adapter has data and its destination tables lack columns of the schemas, one task rewrites the tables first.
    The parts of a load do not, because each part has a new mark, which does not show that the adapter has data.
    """
    if start.deltas and not has_current_columns:
        on_executors(spark, [FollowTask(follower, ranges=[], after={}, until={})], AppliedChunk)
    with closing(follower.open()) as adapter:
        return begin_load(adapter, follower.name, follower.selection, until, parts, follower.schemas)
