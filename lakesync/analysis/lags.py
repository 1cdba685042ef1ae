"""Computes which parts of the pipeline are behind, by how much, and since when, from marks and counts alone.

A *gateway* is one app's stream of changes of rows (*deltas*). A *mark* says how far a part is with them. The mark of
staging (the gateways' store) is the sequence number up to which its log is *flushed*: copied to the lake. A part's
*lag* is what it lacks of the part upstream. The mark of a state table, checkpoint or destination is an *arrival*, the
gateway's timestamp of receipt, up to which it has everything. A *shard* is a staging store with some of the tables.

`collect_progress` collects the marks, and `compare_marks` compares them. Sensors and freshness checks call both
through `lakesync.analysis.lake_marks`, which reads the lake's marks. Sensors write the result to staging, from where
the command line, `/metrics` and the console read it. `lakehouse.history.flush_due` calls `compare_marks` alone.
Nothing here reads the status of a run. `docs/dagster.md` explains what is due when.

Staging's *ledger* counts the deltas that gateways acknowledged, by UTC day of arrival. The freshness checks
(`sensors.freshness`) call `arrival_days` for the days whose deltas an asset should have by now and lacks. This module
imports no pyiceberg, which is slow, because Dagster's code location loads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from lakesync.model.hlc import start_of, wall_of
from lakesync.model.namespaces import Namespaces
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.ledger import day_of
from lakesync.staging.records import Backlog
from lakesync.staging.shards import ShardMap
from lakesync.staging.store.pipeline import FlushStore

Part = Literal["deltas", "table", "checkpoint", "destination", "flow", "tier", "migration", "poll", "erasure"]
"""A kind of part. `deltas` is the lake's history, the table of all deltas (changes of rows), which a flush extends.
`table` is a state table, which has the current rows of a synced table. A `checkpoint` is a snapshot of a gateway's rows
for new clients; a `destination` a database that follows the history. A `flow` copies some deltas from one database to
another, a `tier` moves old ones to another, a `migration` copies all, and a `poll` reads an external system. An
`erasure` deletes what staging has erased from the lake too."""


class HistoryFile(msgspec.Struct, frozen=True):
    """A data file of the history with deltas of one gateway and shard, described by its column bounds."""

    gateway: str
    shard: str
    first: int
    """Smallest arrival."""
    last: int
    """Greatest arrival."""
    deltas: int
    """Number of deltas."""
    first_table: str
    """First table in alphabetical order; `last_table` is the last."""
    last_table: str

    def may_contain(self, table: str) -> bool:
        """Return whether the file may have deltas of a table."""
        return self.first_table <= table <= self.last_table

    def count_after(self, arrival: int) -> int:
        """Return how many deltas arrived later than `arrival`: an estimate, as if arrivals were spread evenly."""
        if arrival < self.first:
            return self.deltas
        return -(-self.deltas * (self.last - arrival) // (self.last - self.first + 1))  # rounded up


class LakeMarks(NamedTuple):
    """The marks that the lake's tables have in their properties."""

    tables: Mapping[str, Mapping[str, int]]
    """Qualified name of a state table → gateway → the arrival up to which its deltas are merged."""
    misplaced: frozenset[str] = frozenset()
    """Gateways whose rows are in another namespace than the configured one, so that no table merges their deltas."""


class StateTable(NamedTuple):
    """A state table with a registered schema, which every flush merges."""

    name: str
    namespace: str


class FollowerPosition(NamedTuple):
    """The mark of a destination or of another part that receives the deltas of the history by itself."""

    name: str
    """Name of the mark in staging."""
    streams: Mapping[str, int]
    """`GATEWAY/SHARD` → the arrival up to which it has everything."""
    gateways: frozenset[str] = frozenset()
    """The gateways that it follows; empty for all."""
    part: Part = "destination"


class Timed(NamedTuple):
    """A poll, flow, tier or migration, which are due at a time because their input has no mark to compare with."""

    part: Part
    name: str
    gateway: str
    """Empty if it belongs to no gateway."""
    mark: int
    """Start of the last run that succeeded, in milliseconds of server wall time; 0 before the first. For a poll it is
    the start of the last one that ended, for a migration the start of the first day that is not copied yet."""
    next_ms: int
    """When the next run is due, in milliseconds of server wall time."""


class Progress(NamedTuple):
    """How far a part of the pipeline is with the deltas of one gateway: its mark, and which deltas it needs."""

    part: Part
    name: str
    """Name of the table or destination; empty for a checkpoint."""
    gateway: str
    mark: int
    """The arrival up to which it has everything; 0 if it has nothing yet."""
    shards: frozenset[str] = frozenset()
    """The shards whose deltas the part needs; empty for all."""
    table: str = ""
    """The table whose deltas the part needs; empty for all."""

    def lacks(self, file: HistoryFile) -> bool:
        """Return whether a file may have deltas that the part needs and does not have."""
        return (
            file.last > self.mark
            and file.gateway == self.gateway
            and (not self.shards or file.shard in self.shards)
            and (not self.table or file.may_contain(self.table))
        )


class Lag(msgspec.Struct, frozen=True, rename="camel"):
    """A part that is behind the one upstream, and by how much."""

    part: Part
    name: str
    """Name of the table, destination, flow, tier, migration or polled connector. `CONNECTOR/TABLE` if a poll
    failed for only some tables, which are then behind. For `deltas` it is the shard. Empty for a checkpoint or an
    erasure."""
    gateway: str
    """Empty for flows, tiers and migrations, which concern all gateways."""
    mark: int
    """The arrival up to which the part has everything. For `deltas` it is the flushed sequence number, for a timed part
    `Timed.mark`."""
    deltas: int
    """Number of deltas that it lacks: exact for `deltas`, else an upper estimate; 0 for a timed part."""
    since_ms: int
    """When the oldest of these deltas arrived, or when a timed part was due, in milliseconds of server wall time."""

    @property
    def key(self) -> str:
        """Identifier of the part."""
        return f"{self.part}/{self.name}/{self.gateway}" if self.name else f"{self.part}/{self.gateway}"


def collect_progress(
    backlog: Sequence[Backlog],
    lake: LakeMarks,
    tables: Iterable[StateTable],
    followers: Iterable[FollowerPosition],
    namespaces: Namespaces,
    shards: ShardMap | None = None,
) -> list[Progress]:
    """Return the progress of each part that follows the history, for each gateway.

    A state table has an entry for each gateway whose deltas it merges, and a checkpoint one for each gateway. A
    destination has one for each gateway and shard that it follows. A gateway from which nothing was flushed is left
    out, because nothing of it can be behind.

    Args:
        backlog: staging's backlog: a record of the unflushed and flushed deltas of each gateway in each shard.
        lake: the marks of state tables.
        tables: tables that every flush merges. Other tables in the lake are merged for gateways that wrote them.
        followers: destinations, which follow the history.
        namespaces: the namespaces of the gateways' tables.
        shards: the shards; None if tables are not sharded.
    """
    merged = {gateway for marks in lake.tables.values() for gateway in marks}
    # a merged gateway may have deltas in the lake from before this store was created
    flushed = {each.gateway for each in backlog if each.flushed_seq or each.gateway in merged}
    placed = sorted(flushed - lake.misplaced)
    # Qualified name → table. Such a table is merged for every gateway of its namespace, also before its first merge.
    always_merged = {namespaces.table_name(table.namespace, table.name): table for table in tables}
    progress = []
    # state tables
    for qualified in sorted(always_merged.keys() | lake.tables.keys()):
        marks = lake.tables.get(qualified, {})
        name = qualified.rpartition(".")[2]
        shards_of_table = _shards_of(name, shards)
        for gateway in placed:
            table = always_merged.get(qualified)
            if (table is not None and namespaces.of(gateway) == table.namespace) or gateway in marks:
                progress.append(Progress("table", qualified, gateway, marks.get(gateway, 0), shards_of_table, name))
    # checkpoints
    checkpoints: dict[str, int] = {}  # gateway → the least arrival of its checkpoint, which has one in each shard
    for each in backlog:
        arrival = each.checkpoint_arrival or 0
        checkpoints[each.gateway] = min(arrival, checkpoints.get(each.gateway, arrival))
    progress += [Progress("checkpoint", "", gateway, checkpoints[gateway]) for gateway in placed]
    # destinations
    for follower in followers:
        for each in backlog:
            if each.gateway in flushed and (not follower.gateways or each.gateway in follower.gateways):
                mark = follower.streams.get(f"{each.gateway}/{each.shard}", 0)
                progress.append(Progress(follower.part, follower.name, each.gateway, mark, frozenset((each.shard,))))
    return progress


def lowest_mark(progress: Iterable[Progress]) -> int:
    """Return the arrival up to which every part has everything; files of the history with later deltas must be read."""
    return min((max(each.mark, 0) for each in progress), default=0)


def compare_marks(
    backlog: Sequence[Backlog],
    progress: Sequence[Progress],
    files: Iterable[HistoryFile],
    timed: Iterable[Timed] = (),
    now_ms: int = 0,
) -> list[Lag]:
    """Compare marks and return every part that is behind the one upstream.

    The history (`deltas`) is behind if a gateway has unflushed deltas. A part that follows the history is behind if a
    file of the history may have deltas above its mark. A timed part is behind from the time at which it is due.

    Args:
        backlog: staging's backlog, with the number of unflushed deltas of each gateway in each shard.
        progress: the marks of the other parts, as `collect_progress` returns them.
        files: the files of the history with deltas later than `lowest_mark`.
        timed: polls, flows, tiers and migrations.
        now_ms: server wall time in milliseconds since 1970.
    """
    behind = [
        Lag("deltas", each.shard, each.gateway, each.flushed_seq, each.deltas, each.oldest_ms)
        for each in backlog
        if each.oldest_ms is not None
    ]
    by_gateway: dict[str, list[HistoryFile]] = {}
    for file in files:
        by_gateway.setdefault(file.gateway, []).append(file)
    for each in progress:
        lacking = [file for file in by_gateway.get(each.gateway, ()) if each.lacks(file)]
        if lacking:
            since = min(max(file.first, each.mark) for file in lacking)
            deltas = sum(file.count_after(each.mark) for file in lacking)
            behind.append(Lag(each.part, each.name, each.gateway, each.mark, deltas, wall_of(since)))
    # a mark in the future counts as due: the clock was set back, which must not delay a run
    behind += [
        Lag(each.part, each.name, each.gateway, each.mark, 0, each.next_ms)
        for each in timed
        if not each.mark <= now_ms < each.next_ms
    ]
    return behind


class ArrivalDay(msgspec.Struct, frozen=True):
    """One UTC day of arrival, over all gateways."""

    day: str
    """`YYYY-MM-DD`."""
    acknowledged: int
    """Number of deltas that gateways acknowledged."""
    flushed: int
    """Number of these that are in the lake's history."""
    late: bool
    """Whether the asset lacks deltas that arrived on the day and should be in it by now."""


def arrival_days(store: FlushStore, asset_lags: Sequence[Lag], due_ms: int) -> list[ArrivalDay]:
    """Return the days of arrival, each with whether an asset is late.

    If the lake's history is late, every asset is, because assets are made from the history.

    Args:
        store: the staging store, which has the ledger.
        asset_lags: the asset's lags behind the history, by gateway; empty for the history itself.
        due_ms: server wall time in milliseconds since 1970. Deltas acknowledged before it should be in the asset.
    """
    history = _days_of_history(store, due_ms)
    late_since_ms = [lag.since_ms for lag in asset_lags if lag.since_ms < due_ms]
    if not late_since_ms:
        return history
    first, last = day_of(start_of(min(late_since_ms))), day_of(start_of(due_ms))
    return [msgspec.structs.replace(day, late=day.late or first <= day.day <= last) for day in history]


def _shards_of(table: str, shards: ShardMap | None) -> frozenset[str]:
    """Return the shards with a table's deltas. Deltas from before sharding are in the stream of the default shard."""
    if shards is None:
        return frozenset()
    shard = shards.of(table)
    return frozenset((shard, MAIN_SHARD)) if shard == shards.default else frozenset((shard,))


def _days_of_history(store: FlushStore, due_ms: int) -> list[ArrivalDay]:
    """Return the days of arrival, each with whether the lake's history is late.

    It is late on a day if a gateway has unflushed deltas of that day, and its oldest unflushed one is due.
    """
    overdue = {lag.gateway for lag in compare_marks(store.backlog(), (), ()) if lag.since_ms < due_ms}
    last = day_of(start_of(due_ms))
    days: dict[str, ArrivalDay] = {}
    for gateway in store.gateways():
        for entry in store.ledger(gateway):
            total = days.get(entry.day, ArrivalDay(entry.day, 0, 0, late=False))
            days[entry.day] = ArrivalDay(
                entry.day,
                total.acknowledged + entry.count,
                total.flushed + entry.flushed_count,
                late=total.late or (gateway in overdue and entry.flushed_count < entry.count and entry.day <= last),
            )
    return [days[day] for day in sorted(days)]
