"""What each part of the pipeline lacks of the part upstream, computed from marks alone.

A mark says how far a part is with one gateway's deltas. Staging has its sequence, each state table, checkpoint and
destination the arrival up to which it has everything. Sensors, the command line, `/metrics`, the console and the
checks of freshness all use what is computed here, so that they agree; nothing here reads a run's status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from lakesync.model.hlc import wall_of
from lakesync.model.namespaces import Namespaces
from lakesync.staging.head import MAIN_SHARD
from lakesync.staging.records import Backlog
from lakesync.staging.shards import ShardMap

Part = Literal["deltas", "table", "checkpoint", "destination", "flow", "tier", "poll", "erasure"]


REPORT = "pipeline"
"""Name of the mark in staging that is the pipeline's latest report."""


class Piece(msgspec.Struct, frozen=True):
    """One gateway's deltas in one data file of `deltas`, as the bounds of the file's columns describe them."""

    gateway: str
    shard: str
    first: int
    """The least arrival."""
    last: int
    """The greatest arrival."""
    deltas: int
    first_table: str
    """In order of names, as is `last_table`."""
    last_table: str

    def may_hold(self, table: str) -> bool:
        """Whether deltas of a table may be among these."""
        return self.first_table <= table <= self.last_table

    def beyond(self, arrival: int) -> int:
        """How many of these arrived later; about, if the arrival lies among theirs."""
        if arrival < self.first:
            return self.deltas
        return -(-self.deltas * (self.last - arrival) // (self.last - self.first + 1))


class LakeMarks(msgspec.Struct, frozen=True):
    """The marks that the lake has."""

    tables: dict[str, dict[str, int]] = {}
    """State table, as people call it → gateway → the arrival up to which its deltas are merged."""
    pieces: tuple[Piece, ...] = ()
    """The files of `deltas` with anything beyond the least mark."""
    moved: frozenset[str] = frozenset()
    """Gateways whose rows are in another namespace than the configuration says: no table takes their deltas."""


class StateTable(NamedTuple):
    """A state table that every flush merges."""

    name: str
    namespace: str


class Follower(NamedTuple):
    """What follows `deltas` with a mark of its own."""

    name: str
    streams: Mapping[str, int]
    """`GATEWAY/SHARD` → the arrival up to which it has everything."""
    gateways: frozenset[str] = frozenset()
    """Those that it follows; empty: all."""
    part: Part = "destination"


class Timed(NamedTuple):
    """What follows a place that keeps no mark for it, such as a source: it is due by the clock."""

    part: Part
    name: str
    gateway: str
    """Empty where it is of no gateway."""
    mark: int
    """When the last run that ended well began, in milliseconds of server wall time; 0 before the first."""
    next_ms: int
    """When the next one is due."""


class Position(NamedTuple):
    """How far a part is with the deltas of one gateway."""

    part: Part
    name: str
    """Of the table or destination; empty for a checkpoint."""
    gateway: str
    mark: int
    """The arrival up to which it has everything; 0 where it has nothing yet."""
    shards: frozenset[str] = frozenset()
    """Of which it takes deltas; empty: of all."""
    table: str = ""
    """Of which it takes deltas; empty: of all."""

    def lacks(self, piece: Piece) -> bool:
        """Whether a piece may hold deltas that it takes and does not have."""
        return (
            piece.last > self.mark
            and piece.gateway == self.gateway
            and (not self.shards or piece.shard in self.shards)
            and (not self.table or piece.may_hold(self.table))
        )


class Lag(msgspec.Struct, frozen=True, rename="camel"):
    """A part that is behind the one upstream, and by how much."""

    part: Part
    name: str
    """Of the table, destination, flow, tiers or connector; the shard of `deltas`; empty for a checkpoint or an erasure.
    """
    gateway: str
    """Empty for flows and tiers, which are of all."""
    mark: int
    """The arrival up to which the part has everything; of `deltas` the sequence; of polls, flows and tiers when the
    last run began."""
    deltas: int
    """How many it lacks: exact for `deltas`, else at most about so many; 0 where it lacks something else."""
    since_ms: int
    """Arrival of the oldest of these, as server wall time in milliseconds; of a poll, flow or tiers when it was due."""

    @property
    def key(self) -> str:
        """What identifies the part."""
        return f"{self.part}/{self.name}/{self.gateway}" if self.name else f"{self.part}/{self.gateway}"


class QueuedRun(msgspec.Struct, frozen=True, rename="camel"):
    """A run of the pipeline that was requested and has not started."""

    run_id: str
    job: str
    since_ms: int


class DeadLetters(msgspec.Struct, frozen=True, rename="camel"):
    """Values, tables or work of one place that are set aside; `lakesync dlq list` lists them one by one."""

    kind: Literal["value", "destination", "work"]
    name: str
    """The table; of destinations `NAME/ADAPTER`, and `NAME/ADAPTER!TABLE` for a table whose rows are not written."""
    gateway: str
    """Empty: every gateway that the destination follows."""
    count: int
    since_ms: int
    """When the first of them was seen."""


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """What the pipeline lacked when its sensors last looked; they write it to staging for others to show."""

    at_ms: int
    lags: tuple[Lag, ...] = ()
    requests: dict[str, int] = {}
    """Key of a part → runs that were requested for it since its mark moved. From `FAILING` on these runs fail."""
    queued: tuple[QueuedRun, ...] = ()
    """Runs that have waited for longer than `QUEUED_SECONDS`."""
    dead_letters: tuple[DeadLetters, ...] = ()

    def of(self, gateway: str) -> list[Lag]:
        """Return the lags of one gateway, and those of flows and tiers, which belong to all gateways."""
        return [lag for lag in self.lags if lag.gateway in (gateway, "")]

    def failing(self) -> list[Lag]:
        """Return the parts for which runs fail: several were requested, and the mark has not moved."""
        return [lag for lag in self.lags if self.requests.get(lag.key, 0) >= FAILING]


FAILING = 3
"""Requests without a move of the mark: two runs at least were in vain, the third may be under way."""
QUEUED_SECONDS = 30
"""A run that has not started by then is reported."""


def report_in(marks: Mapping[str, str]) -> Report | None:
    """Return the pipeline's latest report among staging's marks; None where no pipeline ever reported."""
    text = marks.get(REPORT)
    return msgspec.json.decode(text, type=Report) if text is not None else None


class FollowerMark(msgspec.Struct, frozen=True, rename="camel"):
    """How far a destination is, as its latest run told staging; the mark that counts is at the destination itself."""

    choice: str
    """What it follows. A mark of another choice says nothing."""
    streams: dict[str, int]
    """`GATEWAY/SHARD` → the arrival up to which it has everything."""
    at_ms: int
    retry_ms: int | None = None
    """When a table that it continues without is retried, milliseconds since 1970; None: it continues without none."""
    set_aside: tuple[str, ...] = ()
    """The tables that it continues without."""
    dead_letters: dict[str, int] = {}
    """Gateway → values that its tables of rows cannot take."""


class Visit(msgspec.Struct, frozen=True, rename="camel"):
    """When a part was last tidied or audited, and its state then: staging's mark of the part."""

    state: str
    at_ms: int


def is_changed(text: str | None, state: str, now_ms: int, longest_ms: int) -> bool:
    """Whether a part is to be visited: it has another state than at its last visit, or that was long ago.

    Args:
        text: the mark of the last visit; None: there was none.
        state: the part's state now.
        now_ms: server wall time.
        longest_ms: the most between two visits.
    """
    visit = msgspec.json.decode(text, type=Visit) if text is not None else None
    return visit is None or visit.state != state or not 0 <= now_ms - visit.at_ms < longest_ms


def cut_state(backlog: Iterable[Backlog]) -> str:
    """Return which checkpoints are published, as text."""
    return msgspec.json.encode(sorted((each.gateway, each.shard, each.cut_arrival or 0) for each in backlog)).decode()


def followed_state(text: str | None) -> str:
    """Return how far a destination is, as text. Args: text: its mark in staging; None: it has taken nothing."""
    streams = msgspec.json.decode(text, type=FollowerMark).streams if text is not None else {}
    return msgspec.json.encode(streams, order="sorted").decode()


def log_state(backlog: Iterable[Backlog]) -> str:
    """Return how far the log's batches are confirmed, as text."""
    return msgspec.json.encode(
        sorted((each.gateway, each.shard, each.epoch, each.flushed_seq) for each in backlog)
    ).decode()


def positions(
    backlog: Sequence[Backlog],
    lake: LakeMarks,
    tables: Iterable[StateTable],
    followers: Iterable[Follower],
    namespaces: Namespaces,
    shards: ShardMap | None = None,
) -> list[Position]:
    """Return how far each part of the pipeline is, except for `deltas` themselves.

    Args:
        backlog: staging's, of every shard of every gateway.
        lake: its tables' marks; the pieces are not read here.
        tables: those that every flush merges; others that the lake has are merged with their gateways' checkpoints.
        followers: destinations.
        namespaces: of the gateways' tables.
        shards: where tables are sharded.
    """
    merged = {gateway for marks in lake.tables.values() for gateway in marks}
    cuts: dict[str, int] = {}
    flushed: set[str] = set()
    for each in backlog:
        if each.flushed_seq or each.gateway in merged:
            flushed.add(each.gateway)
        cuts[each.gateway] = min(each.cut_arrival or 0, cuts.get(each.gateway, each.cut_arrival or 0))
    every = {namespaces.called(table.namespace, table.name): table for table in tables}
    found = []
    for called in sorted(every.keys() | lake.tables.keys()):
        marks = lake.tables.get(called, {})
        name = called.rpartition(".")[2]
        own = _shards_of(name, shards)
        for gateway in sorted(flushed - lake.moved):
            registered = called in every and namespaces.of(gateway) == every[called].namespace
            if registered or gateway in marks:
                found.append(Position("table", called, gateway, marks.get(gateway, 0), own, name))
    found += [Position("checkpoint", "", gateway, cuts[gateway]) for gateway in sorted(flushed - lake.moved)]
    for follower in followers:
        for each in backlog:
            if each.gateway in flushed and (not follower.gateways or each.gateway in follower.gateways):
                mark = follower.streams.get(f"{each.gateway}/{each.shard}", 0)
                found.append(Position(follower.part, follower.name, each.gateway, mark, frozenset((each.shard,))))
    return found


def least_mark(found: Iterable[Position]) -> int:
    """Return the arrival up to which every part has everything: no file below it needs to be looked at."""
    return min((max(each.mark, 0) for each in found), default=0)


def lags(
    backlog: Sequence[Backlog],
    found: Sequence[Position],
    pieces: Iterable[Piece],
    timed: Iterable[Timed] = (),
    now_ms: int = 0,
) -> list[Lag]:
    """Compare marks: return every part that is behind the one upstream.

    Args:
        backlog: staging's, of which `deltas` may lack something.
        found: how far the other parts are.
        pieces: of `deltas`, with everything beyond their least mark.
        timed: polls, flows and tiers.
        now_ms: server wall time.
    """
    behind = [
        Lag("deltas", each.shard, each.gateway, each.flushed_seq, each.deltas, each.oldest_ms)
        for each in backlog
        if each.oldest_ms is not None
    ]
    by_gateway: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_gateway.setdefault(piece.gateway, []).append(piece)
    for each in found:
        lacking = [piece for piece in by_gateway.get(each.gateway, ()) if each.lacks(piece)]
        if lacking:
            since = min(max(piece.first, each.mark) for piece in lacking)
            deltas = sum(piece.beyond(each.mark) for piece in lacking)
            behind.append(Lag(each.part, each.name, each.gateway, each.mark, deltas, wall_of(since)))
    # a clock that was put back holds nothing up
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
