"""Computes from marks and counts alone which parts of the pipeline are behind, by how much, and on which days.

A mark says how far a part is with one gateway's deltas. Staging's mark is the sequence number up to which its log is
flushed to the lake. The mark of a state table, checkpoint or destination is an arrival, the gateway's timestamp of
receipt, up to which it has everything. A shard is a staging store with some of the tables. Sensors, the command line,
`/metrics`, the console and the freshness checks use the same result. Nothing here reads the status of a run.
`docs/dagster.md` explains what is due when.

The staging store's ledger counts the deltas of each UTC day of arrival. The freshness checks of assets call
`arrival_days` for the days whose deltas an asset should have and lacks. This module imports no pyiceberg, which is
slow, because Dagster's code location loads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from lakesync.model.hlc import start_of, wall_of
from lakesync.model.namespaces import Namespaces
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.ledger import day_of
from lakesync.staging.records import Backlog
from lakesync.staging.shards import ShardMap

if TYPE_CHECKING:
    from lakesync.staging.store.pipeline import FlushStore

Part = Literal["deltas", "table", "checkpoint", "destination", "flow", "tier", "migration", "poll", "erasure"]
"""A kind of pipeline stage. `deltas` is the lake's history, which a flush extends; `table` is a state table, which has
the current rows of a synced table. A `flow` copies some deltas from one database to another, a `tier` moves old ones to
another, a `migration` copies all, and a `poll` reads an external system."""

REPORT = "pipeline"
"""Name of the mark in staging with the pipeline's latest report."""


class HistoryFile(msgspec.Struct, frozen=True):
    """A data file of `deltas` with deltas of one gateway and shard, described by its column bounds."""

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
        """Return the number of deltas that arrived later than `arrival`; an estimate if it lies within the file."""
        if arrival < self.first:
            return self.deltas
        return -(-self.deltas * (self.last - arrival) // (self.last - self.first + 1))


class LakeMarks(msgspec.Struct, frozen=True):
    """The marks that the lake's tables have in their properties, and the files with deltas beyond them."""

    tables: dict[str, dict[str, int]] = {}
    """Qualified name of a state table → gateway → the arrival up to which its deltas are merged."""
    files: tuple[HistoryFile, ...] = ()
    """The files of `deltas` with deltas later than the least mark of all tables."""
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
    """A poll, flow, tiers or migration, which are due at a time because their input has no mark to compare with."""

    part: Part
    name: str
    gateway: str
    """Empty if it belongs to no gateway."""
    mark: int
    """Start of the last run that succeeded, in milliseconds of server wall time; 0 before the first. For a connector it
    is the start of the last poll that ended, for a migration the start of the first day that is not copied yet."""
    next_ms: int
    """When the next run is due, in milliseconds of server wall time."""


class Position(NamedTuple):
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
    """Name of the table, destination, flow, tiers, migration or connector. `CONNECTOR/TABLE` if only some tables of the
    connector fail. For `deltas` it is the shard. Empty for a checkpoint or an erasure."""
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


class QueuedRun(msgspec.Struct, frozen=True, rename="camel"):
    """A run of the pipeline that was requested and has not started."""

    run_id: str
    job: str
    """The Dagster job's name."""
    since_ms: int
    """When it was requested, in milliseconds since 1970."""


class DeadLetters(msgspec.Struct, frozen=True, rename="camel"):
    """Counts the dead letters of one table or destination: values, tables and work that were set aside.

    `lakesync dlq list` lists them one by one.
    """

    kind: Literal["value", "destination", "work"]
    """`value`: values of rows that do not fit their columns. `destination`: values or a table that a destination cannot
    store. `work`: failed updates of destination tables by a gateway without a pipeline."""
    name: str
    """The table; for destinations `NAME/ADAPTER`, and `NAME/ADAPTER!TABLE` for a table whose rows are not written."""
    gateway: str
    """Empty for all gateways that the destination follows."""
    count: int
    since_ms: int
    """When the first of them was recorded, in milliseconds of server wall time."""


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The latest comparison of marks, which sensors write to staging so that others can show it."""

    at_ms: int
    """When the marks were compared, in milliseconds since 1970."""
    lags: tuple[Lag, ...] = ()
    requests: dict[str, int] = {}
    """`Lag.key` of a part → number of runs that were requested since its mark moved. With `FAILING` of them, the part
    is failing."""
    queued: tuple[QueuedRun, ...] = ()
    """Runs that have not started for longer than `QUEUED_SECONDS`."""
    dead_letters: tuple[DeadLetters, ...] = ()
    retries: dict[str, int] = {}
    """`Lag.key` of a part → when the next run is requested, unless its mark moves, in milliseconds since 1970."""

    def of(self, gateway: str) -> list[Lag]:
        """Return the lags of one gateway, and those of flows, tiers and migrations, which belong to all gateways."""
        return [lag for lag in self.lags if lag.gateway in (gateway, "")]


FAILING = 3
"""Requested runs without a move of the mark that make a part failing. Two had no effect; the third may be running."""
QUEUED_SECONDS = 30
"""Seconds after which a run that has not started is reported."""


def report_in(marks: Mapping[str, str]) -> Report | None:
    """Return the pipeline's latest report among staging's marks; None if no pipeline has ever reported."""
    text = marks.get(REPORT)
    return msgspec.json.decode(text, type=Report) if text is not None else None


class FollowerMark(msgspec.Struct, frozen=True, rename="camel"):
    """Staging's copy of a destination's mark, from its latest run. The authoritative mark is at the destination."""

    selection: str = msgspec.field(name="choice")
    """The tables and gateways that it follows, as text. If the configuration selects others, the mark is void."""
    streams: dict[str, int]
    """`GATEWAY/SHARD` → the arrival up to which it has everything."""
    at_ms: int
    """End of that run, in milliseconds since 1970."""
    retry_ms: int | None = None
    """When a suspended table is retried, in milliseconds since 1970; None if no table is suspended."""
    set_aside: tuple[str, ...] = ()
    """Suspended tables."""
    dead_letters: dict[str, int] = {}
    """Gateway → number of values that its destination tables cannot store."""


class FailingTable(msgspec.Struct, frozen=True, rename="camel"):
    """A connector's table that the latest polls did not read or did not push completely. Times are server wall time."""

    count: int
    """Failed polls in a row."""
    since_ms: int
    """Start of the first of them."""
    begun_ms: int
    """Start of the latest."""
    ended_ms: int
    """End of the latest."""


class FailedPolls(msgspec.Struct, frozen=True, rename="camel"):
    """Staging's mark of the failing tables of a connector. Each is polled again after a pause of its own."""

    tables: dict[str, FailingTable] = {}
    """By table name."""


class Visit(msgspec.Struct, frozen=True, rename="camel"):
    """Staging's mark of the last visit to a part: its maintenance, or its audit, which compares it with its input."""

    state: str
    """The part's state then, from a function such as `flushed_state`."""
    at_ms: int
    """When it took place, in milliseconds since 1970."""


def is_changed(text: str | None, state: str, now_ms: int, longest_ms: int) -> bool:
    """Return whether maintenance or audit of a part is due: its state has changed, or the last visit is too old.

    Args:
        text: the mark of the last visit, a `Visit` in JSON; None if there was none.
        state: the part's state now.
        now_ms: server wall time in milliseconds since 1970.
        longest_ms: milliseconds between two visits, at most.
    """
    visit = msgspec.json.decode(text, type=Visit) if text is not None else None
    return visit is None or visit.state != state or not 0 <= now_ms - visit.at_ms < longest_ms


def checkpoint_state(backlog: Iterable[Backlog]) -> str:
    """Return the state of the published checkpoints, their arrivals, as a text for `is_changed`."""
    return msgspec.json.encode(
        sorted((each.gateway, each.shard, each.checkpoint_arrival or 0) for each in backlog)
    ).decode()


def destination_state(text: str | None) -> str:
    """Return the progress of a destination as a text, for `is_changed`.

    Args:
        text: its mark in staging, a `FollowerMark` in JSON; None if it has no deltas yet.
    """
    streams = msgspec.json.decode(text, type=FollowerMark).streams if text is not None else {}
    return msgspec.json.encode(streams, order="sorted").decode()


def flushed_state(backlog: Iterable[Backlog]) -> str:
    """Return the flushed sequences of staging's log as a text, for `is_changed`."""
    return msgspec.json.encode(
        sorted((each.gateway, each.shard, each.epoch, each.flushed_seq) for each in backlog)
    ).decode()


def positions(
    backlog: Sequence[Backlog],
    lake: LakeMarks,
    tables: Iterable[StateTable],
    followers: Iterable[FollowerPosition],
    namespaces: Namespaces,
    shards: ShardMap | None = None,
) -> list[Position]:
    """Return the progress of each part of the pipeline, except `deltas` itself.

    A gateway from which nothing was flushed is left out, because nothing of it can be behind.

    Args:
        backlog: staging's backlog, of every shard of every gateway.
        lake: the marks of state tables; `files` is not used here.
        tables: tables that every flush merges. Other tables in the lake are merged for gateways that wrote them.
        followers: destinations.
        namespaces: the namespaces of the gateways' tables.
        shards: the shards; None if tables are not sharded.
    """
    merged = {gateway for marks in lake.tables.values() for gateway in marks}
    checkpoints: dict[str, int] = {}  # gateway → the least arrival of the checkpoint in its shards; 0 without one
    flushed: set[str] = set()
    for each in backlog:
        if each.flushed_seq or each.gateway in merged:  # merged: the lake may have deltas from before this store
            flushed.add(each.gateway)
        checkpoints[each.gateway] = min(
            each.checkpoint_arrival or 0, checkpoints.get(each.gateway, each.checkpoint_arrival or 0)
        )
    # Qualified name → table. Such a table is merged for every gateway of its namespace, also before its first merge.
    always_merged = {namespaces.table_name(table.namespace, table.name): table for table in tables}
    found = []
    for qualified in sorted(always_merged.keys() | lake.tables.keys()):
        marks = lake.tables.get(qualified, {})
        name = qualified.rpartition(".")[2]
        shards_of_table = _shards_of(name, shards)
        for gateway in sorted(flushed - lake.misplaced):
            table = always_merged.get(qualified)
            if (table is not None and namespaces.of(gateway) == table.namespace) or gateway in marks:
                found.append(Position("table", qualified, gateway, marks.get(gateway, 0), shards_of_table, name))
    found += [Position("checkpoint", "", gateway, checkpoints[gateway]) for gateway in sorted(flushed - lake.misplaced)]
    for follower in followers:
        for each in backlog:
            if each.gateway in flushed and (not follower.gateways or each.gateway in follower.gateways):
                mark = follower.streams.get(f"{each.gateway}/{each.shard}", 0)
                found.append(Position(follower.part, follower.name, each.gateway, mark, frozenset((each.shard,))))
    return found


def lowest_mark(progress: Iterable[Position]) -> int:
    """Return the arrival up to which every part has everything. Files with earlier deltas only need not be read."""
    return min((max(each.mark, 0) for each in progress), default=0)


def lags(
    backlog: Sequence[Backlog],
    progress: Sequence[Position],
    files: Iterable[HistoryFile],
    timed: Iterable[Timed] = (),
    now_ms: int = 0,
) -> list[Lag]:
    """Compare marks and return every part that is behind the one upstream.

    Args:
        backlog: staging's backlog, which `deltas` is compared with.
        progress: the marks of the other parts, as `positions` returns them.
        files: the files of `deltas` with deltas later than their least mark.
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


def _shards_of(table: str, shards: ShardMap | None) -> frozenset[str]:
    """Return the shards with a table's deltas. Deltas from before sharding are in the stream of the default shard."""
    if shards is None:
        return frozenset()
    shard = shards.of(table)
    return frozenset((shard, MAIN_SHARD)) if shard == shards.default else frozenset((shard,))


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
    late = [lag.since_ms for lag in asset_lags if lag.since_ms < due_ms]
    if not late:
        return history
    first, last = day_of(start_of(min(late))), day_of(start_of(due_ms))
    return [msgspec.structs.replace(day, late=day.late or first <= day.day <= last) for day in history]


def _days_of_history(store: FlushStore, due_ms: int) -> list[ArrivalDay]:
    """Return the days. One is late if a gateway has unflushed deltas of it, and its oldest arrived before `due_ms`."""
    overdue = {lag.gateway for lag in lags(store.backlog(), (), ()) if lag.since_ms < due_ms}
    last = day_of(start_of(due_ms))
    found: dict[str, ArrivalDay] = {}
    for gateway in store.gateways():
        for day in store.ledger(gateway):
            total = found.get(day.day, ArrivalDay(day.day, 0, 0, late=False))
            found[day.day] = ArrivalDay(
                day.day,
                total.acknowledged + day.count,
                total.flushed + day.flushed_count,
                late=total.late or (gateway in overdue and day.flushed_count < day.count and day.day <= last),
            )
    return [found[day] for day in sorted(found)]
