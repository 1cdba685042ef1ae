"""Writes to destinations the deltas of the lake that they lack, in tasks of Spark, transaction by transaction.

The assets of destinations call it. A task reads the lake's files and writes to the destination; the driver plans, and
receives marks, counts and errors only. A small increment is one task. A large one is a load that is divided among tasks
(`lakesync.adapters.transfer.loads`).
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace
from pyspark.sql import functions as sf

from lakehouse.backends.adapter_tasks import on_executors, open_backends, task_slots
from lakehouse.catalogue import open_table
from lakehouse.history.ordered import Stretch, in_order, latest_arrivals, stretches
from lakehouse.spark_errors import lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, ensure_deltas
from lakesync.adapters.arrow_access import max_writers
from lakesync.adapters.backend_config import WriteTarget
from lakesync.adapters.dead_letters import SuspendedTable, TableIsolation
from lakesync.adapters.registry import as_database, open_adapter
from lakesync.adapters.transfer.follower import (
    HISTORY_COLUMNS,
    ColdTierContents,
    DeltaSelection,
    FollowedPart,
    FollowerProgress,
    Load,
    columns_of_tables,
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
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from lakesync.adapters.base import DatabaseAdapter

_LETTERS = 1_000
DELTAS_A_PART = 50_000
"""Deltas in one part of a divided backlog at least."""


class Follower(msgspec.Struct, frozen=True):
    """One adapter that follows the lake, as tasks receive it."""

    name: str
    """Name of its mark."""
    leaf: WriteTarget
    selection: DeltaSelection
    schemas: tuple[TableSchema, ...] = ()
    """Schemas of its destination tables."""

    def open(self) -> DatabaseAdapter:
        """Open the adapter.

        Raises:
            ConfigurationError, AdapterError: as `open_adapter`.
        """
        return as_database(open_adapter(self.leaf.uri))


class Followed(msgspec.Struct, frozen=True):
    """What a run wrote to a follower."""

    deltas: int
    parts: int
    """Number of transactions or batches."""
    tasks: int
    progress: FollowerProgress
    history: dict[str, int]
    """`GATEWAY/SHARD` → the arrival to which the run was to write."""
    days: dict[str, int] = {}
    """UTC day of arrival → number of deltas."""
    set_aside: tuple[SuspendedTable, ...] = ()
    """Suspended destination tables."""
    dead_letters: dict[str, int] = {}
    """Gateway → number of values that destination tables cannot store; 1,000 are counted at most."""

    @property
    def behind(self) -> bool:
        """Whether the follower lacks deltas that the run was to write."""
        return any(self.progress.streams.get(name, -1) < arrival for name, arrival in self.history.items())


def follow(spark: SparkSession, follower: Follower, names: LakeNames = NAMES, through: int | None = None) -> Followed:
    """Write to a follower the deltas that it lacks.

    Args:
        spark: an open Spark session.
        follower: the follower.
        names: catalogue and namespaces of the lake's tables.
        through: the last arrival to write, unless a load in progress ends later; None: the newest.

    Raises:
        AdapterError: the destination cannot be reached; a repeat continues after the last transaction.
        IntegrityError: another run writes to the same follower, or it has fewer deltas than were written.
        ConfigurationError: the adapter cannot be a destination.
        LakeUnavailableError: Spark cannot be reached.
    """
    found = _advance(spark, follower, names, through)
    if found.behind:
        # a resumed load ended where the lake was when it began
        rest = _advance(spark, follower, names, through)
        found = replace(
            rest,
            deltas=found.deltas + rest.deltas,
            parts=found.parts + rest.parts,
            tasks=found.tasks + rest.tasks,
            days=_together([found.days, rest.days]),
        )
    with closing(follower.open()) as adapter:
        if not isinstance(adapter, TableIsolation):
            return found
        letters = Counter(letter.gateway for letter in adapter.dead_letters(_LETTERS))
        return replace(found, set_aside=tuple(adapter.suspended_tables(follower.name)), dead_letters=dict(letters))


@lake_errors
def latest(spark: SparkSession, snapshot: int, names: LakeNames = NAMES) -> dict[str, int]:
    """Return the greatest arrival of each `GATEWAY/SHARD` in a snapshot of `deltas`, from the bounds of its files.

    Args:
        spark: an open Spark session.
        snapshot: its id.
        names: catalogue and namespaces of the lake's tables.
    """
    with open_table(spark, names.deltas) as table:
        return latest_arrivals(table, snapshot)


def choice_of(leaf: WriteTarget, gateways: Sequence[str]) -> DeltaSelection:
    """Return the deltas that a write target selects.

    Args:
        leaf: the write target, with its tables.
        gateways: the gateways that it follows; empty: all.
    """
    return DeltaSelection(tuple(leaf.tables), tuple(leaf.without), tuple(sorted(gateways)))


class FollowTask(NamedTuple):
    """The task that writes all deltas that a follower lacks, or one part of its load."""

    follower: Follower
    found: Sequence[Stretch]
    after: Mapping[str, int]
    until: Mapping[str, int]
    load: Load | None = None
    number: int = 0

    def run(self) -> Iterator[FollowedPart]:
        """Write the deltas, transaction by transaction."""
        name, choice = self.follower.name, self.follower.selection
        if self.load is not None:
            name, choice = part_name(name, self.number), replace(choice, part=self.load.part(self.number))
        with ExitStack() as open_adapters:
            adapter = self.follower.open()
            open_adapters.callback(adapter.close)
            older = ColdTierContents(open_backends(self.follower.leaf.cold, open_adapters))
            at = read_follower_progress(adapter, name, choice, self.after)
            after = {stream: max(low, at.streams.get(stream, -1)) for stream, low in self.after.items()}
            history = in_order(self.found, after, self.until, choice, HISTORY_COLUMNS)
            schemas = self.follower.schemas
            yield from follow_history(adapter, name, choice, history, schemas, older, self.until, since=self.after)


def _advance(spark: SparkSession, follower: Follower, names: LakeNames, through: int | None) -> Followed:
    """Write the deltas that a follower lacks, or the rest of its load in progress."""
    with closing(follower.open()) as adapter:
        begun = read_follower_progress(adapter, follower.name, follower.selection)
        load = load_to_resume(adapter, begun, follower.schemas)
        is_shown = columns_of_tables(adapter, follower.schemas) == begun.row_columns
        announced = is_announced(adapter, follower.name)
        asides = adapter.suspended_tables(follower.name) if isinstance(adapter, TableIsolation) else []
        writers = max_writers(adapter)
    wanted_again = any(each.retry_ms <= wall_clock() for each in asides)
    snapshot = ensure_deltas(spark, names).snapshot_id
    if snapshot is None:
        return Followed(0, 0, 0, begun, {})
    wanted = follower.selection.gateways
    everything = latest(spark, snapshot, names)
    history = {
        name: last if through is None else min(last, through)
        for name, last in everything.items()
        if not wanted or name.partition("/")[0] in wanted
    }
    until = load.until if load is not None else history
    after = {name: begun.streams.get(name, -1) for name in until if begun.streams.get(name, -1) < until[name]}
    if not after and is_shown and not announced and not wanted_again:
        return Followed(0, 0, 0, begun, history)
    found = _planned(spark, snapshot, names, after, until)
    if load is None:
        parts = _parts(spark, found, after, writers)
        if parts > 1:
            load = _begun(spark, follower, begun, {name: until[name] for name in after}, parts, is_shown=is_shown)
    whole = FollowTask(follower, found, after, until)
    tasks = [whole] if load is None else [whole._replace(load=load, number=number) for number in range(load.parts)]
    taken = [part for each in on_executors(spark, tasks, FollowedPart) for part in each]
    reached = taken[-1].progress if taken and load is None else begun
    if load is not None or announced:
        with closing(follower.open()) as adapter:
            if load is not None:
                reached = finish_load(adapter, follower.name, follower.selection)
            else:
                withdraw_load(adapter, follower.name)
    days = _together([part.days for part in taken])
    return Followed(reached.deltas - begun.deltas, len(taken), len(tasks), reached, history, days)


def _together(days: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of several counts by day."""
    found: dict[str, int] = {}
    for each in days:
        for day, deltas in each.items():
            found[day] = found.get(day, 0) + deltas
    return found


@lake_errors
def _planned(
    spark: SparkSession, snapshot: int, names: LakeNames, after: Mapping[str, int], until: Mapping[str, int]
) -> list[Stretch]:
    with open_table(spark, names.deltas) as table:
        return stretches(table, snapshot, after, until)


@lake_errors
def _parts(spark: SparkSession, found: Sequence[Stretch], after: Mapping[str, int], writers: int) -> int:
    """Return the number of tasks for a backlog."""
    backlog = sum(each.deltas_beyond(after[each.stream]) for each in found)
    wanted = min(writers, backlog // DELTAS_A_PART)
    return min(wanted, task_slots(spark)) if wanted > 1 else 1


def _begun(
    spark: SparkSession,
    follower: Follower,
    begun: FollowerProgress,
    until: Mapping[str, int],
    parts: int,
    *,
    is_shown: bool,
) -> Load:
    """Begin a load, after rewriting destination tables whose columns have changed."""
    if begun.deltas and not is_shown:
        on_executors(spark, [FollowTask(follower, [], {}, {})], FollowedPart)
    with closing(follower.open()) as adapter:
        return begin_load(adapter, follower.name, follower.selection, until, parts, follower.schemas)


def by_stream(arrivals: Mapping[str, int]) -> Column:
    """Return the entry of each row's stream; null without one."""
    entries = [part for name, arrival in arrivals.items() for part in (sf.lit(name), sf.lit(arrival))]
    return sf.create_map(*entries)[sf.concat_ws("/", "gateway", "shard")]


def chosen(rows: DataFrame, choice: DeltaSelection) -> DataFrame:
    """Return the rows of the history that a follower selects.

    Args:
        rows: rows of the history.
        choice: the selection.
    """
    if choice.tables:
        rows = rows.where(sf.col("table_name").isin(*choice.tables))
    if choice.without:
        rows = rows.where(~sf.col("table_name").isin(*choice.without))
    if choice.gateways:
        rows = rows.where(sf.col("gateway").isin(*choice.gateways))
    return rows
