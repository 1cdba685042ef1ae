"""What a staging store keeps, as values that the engine and the pipeline read and write."""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.lww import RowState
from lakesync.rules.model import SyncRules
from lakesync.schema import TableSchema
from lakesync.staging.shard_records import Handed
from lakesync.staging.source_records import SourcePosition
from lakesync.types import Claims, RowKey

ARRIVAL_STEP = 256
"""Arrivals are multiples of this; what lies between two of them is free for page marks."""

DELETED = -1
"""In place of the arrival of a writer's INSERT: it deleted the row itself."""

LOST = 0
"""In place of the epoch of a client's record: the client was seen, and what was known of it is gone."""

MoveKind = Literal["join", "stay", "leave", "own"]

WriteScope = Literal["any", "rules"]
"""`any`: a client may push to every row; `rules`: only to rows that its sync rules show it."""


class LogEntry(msgspec.Struct, frozen=True):
    """One committed push: the unit that is flushed, replayed and trimmed."""

    gateway: str
    shard: str
    epoch: int
    seq: int
    """Dense within (gateway, shard, epoch), from 1."""
    arrival: int
    """The highest arrival of the push, and the arrival of each of its deltas in the lake."""
    client_id: str
    hlc_low: int
    hlc_high: int
    count: int
    ids: bytes
    """`wire.log.pack_ids`; outlives the body."""
    body: bytes | None
    """`wire.log.encode_body`; None once trimmed."""
    claims: Claims
    """The sender's claims that the rules read, for a replay."""


class StoredRow(msgspec.Struct, array_like=True, gc=False):
    """A row as the feed needs it: its state and who saw what of it when.

    A store may hand out the one that it holds: change a copy.
    """

    table: str
    row_id: str
    arrival: int
    """Latest arrival of a change."""
    state: RowState
    touched: dict[str, int] = {}
    """Column → arrival at which its value last changed or was last contested."""
    writers: dict[str, tuple[int, int]] = {}
    """Client → (arrival of the INSERT by which it has the row, arrival of its latest delta); the newest few.

    The first is 0 where it never inserted the row, DELETED where its own copy is gone, and an arrival with a minus
    where since then its own copy cannot be what the row is.
    """
    writers_floor: int = 0
    """Writers up to this arrival may be missing from `writers`."""
    keys: tuple[str, ...] = ()
    """Bucket keys that the row is inside of, sorted."""

    @property
    def key(self) -> RowKey:
        """The row's place."""
        return (self.table, self.row_id)

    def copy(self) -> StoredRow:
        """A row that can be changed without changing this one."""
        return self.after(RowState(self.state.live, self.state.tombstone, self.state.inserted), self.arrival)

    def after(self, state: RowState, at: int) -> StoredRow:
        """A row that can be changed without changing this one, with another state from the arrival `at`."""
        touched, writers = self.touched.copy(), self.writers.copy()
        return StoredRow(self.table, self.row_id, at, state, touched, writers, self.writers_floor, self.keys)


class Move(msgspec.Struct, frozen=True):
    """A change of one row's entry under one bucket key.

    `join`: the row is now inside, and was not. `stay`: it was inside and changed. `leave`: it was inside and is no
    longer. `own`: the row concerns one client alone (key `@client`): its own delta lost, or its row is not visible
    to it.
    """

    bucket: str
    table: str
    row_id: str
    arrival: int
    kind: MoveKind


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A row's history under one bucket key, as arrivals; 0 where it never happened."""

    bucket: str
    table: str
    row_id: str
    first: int
    """Earliest joining."""
    since: int
    """Latest joining."""
    left: int
    """Latest leaving."""
    changed: int
    """Latest change while inside, or latest leaving: the order of the feed."""
    inside: bool

    @property
    def key(self) -> RowKey:
        """The row's place."""
        return (self.table, self.row_id)


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """What a client was allowed to see while it was told something, until the next scope."""

    number: int
    """Counts from 1."""
    claims: Claims
    """Those that the rules read."""
    rules_version: int
    keys: tuple[str, ...]
    """The bucket keys that came of them."""
    at: int
    """The newest arrival when the client was first told something under it."""
    start: int
    """Complete cursors from here on, below the next scope's, are of this one; -1: none was handed out."""
    told: int
    """No row was ever told under it at a later place in the feed."""


class Page(msgspec.Struct, frozen=True, array_like=True):
    """A cursor in the middle of a walk: a page mark, strictly between two arrivals, of one client.

    The one with cursor 0 stands for a client that started again, or for the first time.
    """

    cursor: int
    after: int
    """In the normal order, rows whose latest change is above this are still to come."""
    base: int
    """The complete cursor at which the walk began; -1: it began with nothing, or with nobody knows what."""
    until: int
    """A row that has not changed since this arrival was met by the walk at one place only."""
    resync: bool
    """The walk began at a client that may hold rows that the gateway does not know of."""
    then: int
    """Number of the scope that held at `base`; 0 where there is no base."""
    scope: int
    """Number of the scope that the walk is made under."""
    turn: int
    """Rows whose latest change is above this are met in the normal order; 0: all of them."""
    redo: tuple[tuple[int, int], ...]
    """Ranges of the feed, above the first and up to the second arrival, to be gone through besides."""
    redo_first: bool
    """They come before the normal order, not behind it."""
    serial: int
    """How many pages the client was told up to this one; another number: it was told more since."""


class PastKey(msgspec.Struct, frozen=True, array_like=True):
    """A bucket key of a scope that is forgotten."""

    key: str
    at: int
    told: int


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """All that a gateway keeps about one client."""

    client_id: str
    epoch: int
    last_seen_ms: int
    scopes: tuple[Scope, ...] = ()
    """Newest last; the newest few."""
    pages: tuple[Page, ...] = ()
    """Newest last; the newest few."""
    past: tuple[PastKey, ...] = ()
    marks: int = 0
    """Page marks handed out so far."""
    seen: int = 0
    """The cursor of the place where the client certainly was; what it was told since it may or may not have."""
    last: int = 0
    """The cursor handed out last that came with deltas."""
    told: int = 0
    """How many pages with deltas it was told."""
    wrote: bool = False
    """It pushed something."""
    followed: bool = False
    """Pages are sent to it unasked, of which nothing is kept here."""
    sources: tuple[SourcePosition, ...] = ()
    """How far the client is with each source that it ever pulled from."""
    handed: Handed | None = None
    """What cursors stand for that a sharded gateway handed out; kept in the default shard alone."""


class SchemaVersion(msgspec.Struct, frozen=True):
    """A registered schema; versions count from 1."""

    version: int
    schema: TableSchema


class GatewayConfig(msgspec.Struct, frozen=True):
    """What a gateway was told at run time; `version` grows with every change."""

    version: int
    schemas: dict[str, SchemaVersion]
    rules: SyncRules | None
    rules_version: int
    """0 before rules were ever set; counts every change, unlike the version inside the rules."""
    write_scope: WriteScope | None = None
    """What a push may change, where it was set at run time."""


class ActionRecord(msgspec.Struct, frozen=True):
    """What is known of one action of a client: who is at it, or how it ended."""

    client_id: str
    action_id: str
    idempotency_key: str | None
    attempts: int
    claim: str
    """Who runs it, or ran it last."""
    lease_ms: int
    """Server wall time until which the claim's holder is believed to be at it; 0 where nobody is."""
    touched_ms: int
    """Server wall time of the latest change."""
    outcome: bytes | None = None
    """How it ended; None where it has not, or may be tried again."""


class ActionEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One attempt at an action, as told to an admin; never its params nor its result."""

    seq: int
    """Counts the gateway's attempts from 1."""
    at_ms: int
    """Server wall time of its end."""
    client_id: str
    action_id: str
    connector: str
    action_type: str
    attempt: int
    code: str
    """`OK`, or the failure's code."""
    ms: int
    """How long the handler took."""


class Reindex(msgspec.Struct, frozen=True):
    """How far a gateway's rows are brought in line with its rules."""

    rules_version: int
    """Of the rules that the re-index was begun for."""
    after: RowKey | None
    """Rows up to here, in key order, are certainly in line, and those pushed since."""
    done: bool
    """All rows are."""


class Batch(msgspec.Struct, frozen=True):
    """A planned flush: a whole prefix of the unflushed log, fixed before Spark starts."""

    batch_id: str
    gateway: str
    shard: str
    epoch: int
    from_seq: int
    to_seq: int
    """Inclusive."""
    deltas: int
    bytes: int
    arrival_low: int
    arrival_high: int


class Backlog(msgspec.Struct, frozen=True):
    """What waits to be flushed in one shard of a gateway."""

    gateway: str
    shard: str
    epoch: int
    flushed_seq: int
    last_seq: int
    last_arrival: int
    deltas: int
    bytes: int
    oldest_ms: int | None
    """Server wall time of the oldest unflushed commit; None when nothing waits."""
    flush_requested_ms: int | None
    """When `/admin/flush` last asked and was not yet served."""
    flushed_ms: int | None = None
    """Server wall time at which the lake was last read to hold a batch; None before the first."""
    flushed_snapshot: int | None = None
    """The snapshot of the lake's `deltas` in which it was read; None where a flush without a pipeline did it."""
    uncut_rules: int | None = None
    """The version of rules with which all rows are in line, where the newest cut is of older ones: it is handed out to
    nobody, so another has to be made."""


class LedgerDay(msgspec.Struct, frozen=True):
    """Count and sum of the acknowledged deltas of one arrival day (UTC)."""

    gateway: str
    day: str
    """`YYYY-MM-DD`."""
    count: int
    id_sum: int
    """Sum of `delta.id_number` modulo 2**64."""
    flushed_count: int
    flushed_id_sum: int


class HeldShard(msgspec.Struct, frozen=True):
    """One shard of a gateway at the arrival that all of its shards were held at."""

    epoch: int
    rules_version: int
    """Each shard counts changes of rules by itself."""


class Hold(msgspec.Struct, frozen=True):
    """Where a gateway can be cut: every push so far is at or below the arrival, and every later one above it."""

    gateway: str
    arrival: int
    epoch: int
    rules_version: int | None
    """In force there; None while rows are still brought in line with rules that changed, when there is no cut."""
    shards: dict[str, HeldShard] = {}
    """By shard, where tables are sharded."""


class CutTable(msgspec.Struct, frozen=True):
    """One table of a cut."""

    table: str
    snapshot_id: int
    rows: int
    frames: tuple[str, ...]
    """URIs of its checkpoint frame files, in order."""
    bytes: int


class Cut(msgspec.Struct, frozen=True):
    """A consistent state of all tables of a gateway at one arrival."""

    gateway: str
    epoch: int
    arrival: int
    rules_version: int
    tables: tuple[CutTable, ...]
    created_ms: int
    shards: dict[str, HeldShard] = {}
    """As in the `Hold` that it was made at; each shard's store gets its own part."""


class Erasure(msgspec.Struct, frozen=True):
    """A request to erase for good one row, or all that one client wrote, and how far it is."""

    gateway: str
    seq: int
    """Counts from 1 in the gateway."""
    table: str | None
    row_id: str | None
    client_id: str | None
    """Either this, or `table` and `row_id`."""
    hlc: int
    """What is stamped up to here is erased; what is written later is not."""
    arrival: int
    """What the lake holds of it is at or below this arrival, once it holds everything up to there."""
    requested_ms: int
    deltas: int = 0
    """Deltas of the log that lost what they said; those that were trimmed before had lost it already."""
    row_count: int = 0
    """Rows that were gone or lost columns by it."""
    done_ms: int | None = None
    """Server wall time at which nothing of it was left in staging."""
    lake_ms: int | None = None
    """Server wall time at which the lake was said to have erased it."""
    shards: tuple[str, ...] = ()
    """Whose deltas of the history it covers, where tables are sharded: each shard has a request of its own."""


class LogSource(msgspec.Struct, frozen=True):
    """Where Spark reads committed log rows: a JDBC address and the columns' home."""

    url: str
    table: str
    properties: dict[str, str] = {}
