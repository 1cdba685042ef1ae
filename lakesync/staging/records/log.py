"""Values of the log and of its flush to the lake: log rows, batches, the ledger, checkpoints and erasures.

Gateways write the *log*: one row for each push. The data pipeline *flushes* it: it copies batches of log rows to the
lake's Iceberg table `deltas`, and *confirms* a batch to the store after reading it back. Then the store may *trim* the
log: delete the bodies of log rows. The *ledger* counts the accepted deltas (changes of rows), so that both sides can be
compared. The pipeline merges `deltas` into *state tables*, which have the current rows, and publishes *checkpoints* of
them, which gateways serve to new clients. It also confirms erasures. Stores return these values to gateways and to the
pipeline.

A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit; an *hlc* is the client's
timestamp of a delta. Times with `_ms` are server wall time in milliseconds since 1970. An *epoch* identifies a
gateway's copy in a store: a rebuild from the lake begins a new one. A *shard* is a store with some of the gateway's
tables; without sharding there is one, `main`. *Rules* decide by a client's *claims* (the contents of its token) which
rows it may see. After a change of rules, a *re-index* assigns the stored rows to the new ones.
"""

from __future__ import annotations

import msgspec

from lakesync.model.types import Claims, RowDelta, RowKey
from lakesync.model.validation import check_erasure_target

ARRIVAL_STEP = 256
"""Arrivals are multiples of this. The numbers between two arrivals are used for cursors in the middle of a series of
pages (page marks)."""


class LogEntry(msgspec.Struct, frozen=True):
    """One committed push: the unit of flush, replay and trim."""

    gateway: str
    shard: str
    epoch: int
    """Wall time in milliseconds when the gateway was created in its store; a rebuild from the lake creates it again."""
    seq: int
    """Number of the log row: dense within (gateway, shard, epoch), from 1."""
    arrival: int
    """The highest arrival of the push. In the gateway's feed each of its rows has an arrival of its own; in the lake
    all of its deltas have this one."""
    client_id: str
    """The client that pushed."""
    hlc_low: int
    """The lowest hlc of the push's deltas."""
    hlc_high: int
    """The highest hlc of the push's deltas."""
    count: int
    """Number of deltas."""
    ids: bytes
    """The deltas' ids, output of `wire.log.pack_ids`. They stay when the body is trimmed, so that a repeated push is
    recognised."""
    body: bytes | None
    """The encoded deltas, output of `wire.log.encode_body`; None once they are trimmed."""
    claims: Claims
    """The sender's claims that the rules read. A replay needs them to decide what the sender could see."""


class LogSource(msgspec.Struct, frozen=True):
    """A JDBC address from which Spark's tasks read committed log rows, beside the process that owns the store."""

    url: str
    """A JDBC URL."""
    table: str
    """The log's table in that database, as SQL names it."""
    properties: dict[str, str] = {}
    """JDBC connection properties, with the credentials; for Postgres, the URL's other parameters with libpq's names."""


class Batch(msgspec.Struct, frozen=True):
    """A planned flush: a prefix of the unflushed log.

    It is fixed before Spark starts, so that a repeated flush writes the same rows.
    """

    batch_id: str
    """`GATEWAY.SHARD.EPOCH.FROM_SEQ-TO_SEQ`."""
    gateway: str
    shard: str
    epoch: int
    from_seq: int
    """`LogEntry.seq` of the first log row of the batch."""
    to_seq: int
    """`LogEntry.seq` of the last log row of the batch, which belongs to it."""
    deltas: int
    """Number of deltas."""
    bytes: int
    """Stored bytes of the log rows' bodies."""
    arrival_low: int
    """Arrival of the first log row."""
    arrival_high: int
    """Arrival of the last log row."""


class Backlog(msgspec.Struct, frozen=True):
    """The unflushed log rows of a gateway in one shard, and how far its flush is."""

    gateway: str
    shard: str
    epoch: int
    flushed_seq: int
    """`LogEntry.seq` of the last log row that is confirmed to be in the lake; 0 for none."""
    last_seq: int
    """`LogEntry.seq` of the newest log row; 0 for none."""
    last_arrival: int
    """Arrival of the newest log row; 0 for none."""
    deltas: int
    """Number of unflushed deltas."""
    bytes: int
    """Stored bytes of unflushed deltas."""
    oldest_ms: int | None
    """When the oldest unflushed push was committed; None if nothing is unflushed."""
    flush_requested_ms: int | None
    """When `/admin/flush` requested a flush that is not done yet; None if none is requested."""
    flushed_ms: int | None = None
    """When a batch was last confirmed; None before the first."""
    flushed_snapshot: int | None = None
    """The Iceberg snapshot of `deltas` in which that batch was read back; None if a flush without a pipeline wrote it.
    """
    rules_without_checkpoint: int | None = None
    """Version of the active rules that the newest checkpoint does not have; None if it has them. A checkpoint with
    older rules is not served, so the pipeline makes a new one."""
    checkpoint_arrival: int | None = None
    """Arrival of the newest published checkpoint; None before the first."""
    oldest_arrival: int | None = None
    """Arrival of the oldest unflushed push; None if nothing is unflushed."""


class LedgerDay(msgspec.Struct, frozen=True):
    """Count and id sum of the accepted deltas of one UTC day of arrival."""

    gateway: str
    day: str
    """`YYYY-MM-DD`."""
    count: int
    """Number of accepted deltas."""
    id_sum: int
    """Sum of their id numbers (`model.delta.id_number`), modulo 2**64."""
    flushed_count: int
    """Number of these deltas that are confirmed to be in the lake."""
    flushed_id_sum: int
    """Sum of the id numbers of the confirmed deltas, modulo 2**64."""


class ShardCutPoint(msgspec.Struct, frozen=True):
    """One shard's epoch and rules at a cut point."""

    epoch: int
    rules_version: int
    """Version of the active rules; each shard counts its own changes of rules."""


class CutPoint(msgspec.Struct, frozen=True):
    """An arrival at which a checkpoint can be made: every push so far is at or below it, every later push above."""

    gateway: str
    arrival: int
    epoch: int
    rules_version: int | None
    """Version of the active rules; None while a re-index is running, when no checkpoint can be made."""
    shards: dict[str, ShardCutPoint] = {}
    """By shard name; empty without sharding."""


class CheckpointTable(msgspec.Struct, frozen=True):
    """One table of a checkpoint."""

    table: str
    snapshot_id: int
    """The Iceberg snapshot of the state table that its rows are from."""
    rows: int
    """Number of rows."""
    frames: tuple[str, ...]
    """URIs of its frame files, which have its rows as length-prefixed protobuf messages (*frames*), in order."""
    bytes: int
    """Size of its frame files."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A consistent snapshot of all tables of a gateway at one arrival, from which new clients start."""

    gateway: str
    epoch: int
    arrival: int
    """It contains all pushes up to this arrival, and none above."""
    rules_version: int
    """Version of the rules that were active at that arrival."""
    tables: tuple[CheckpointTable, ...]
    created_ms: int
    shards: dict[str, ShardCutPoint] = {}
    """As in `CutPoint.shards`. The store of each shard is given its own part of the checkpoint."""


class Erasure(msgspec.Struct, frozen=True):
    """The permanent deletion of one row, or of everything that one client wrote.

    Raises:
        ValidationError: it names neither one row nor one client.
    """

    gateway: str
    seq: int
    """Counts the gateway's erasures from 1."""
    table: str | None
    """The erased row's table; None for a client."""
    row_id: str | None
    """The erased row's id; None for a client."""
    client_id: str | None
    """The erased client's id; None for a row."""
    hlc: int
    """Deltas with a client's timestamp up to this one are erased, later ones are not."""
    arrival: int
    """Once the lake contains everything up to this arrival, it contains every erased delta."""
    requested_ms: int
    deltas: int = 0
    """Number of deltas in the log that lost their values; trimmed deltas are not counted."""
    row_count: int = 0
    """Number of rows that were deleted or lost columns."""
    done_ms: int | None = None
    """When staging had erased everything; None before."""
    lake_ms: int | None = None
    """When the lake had erased everything; None before."""
    shards: tuple[str, ...] = ()
    """The shards whose deltas it covers; empty without sharding. Each shard has an erasure of its own."""

    def __post_init__(self) -> None:
        """Check that it names either a row or a client."""
        subject = f"erasure {self.seq} of gateway {self.gateway!r}"
        check_erasure_target(subject, self.table, self.row_id, self.client_id)

    def covers(self, delta: RowDelta) -> bool:
        """Return whether the erasure deletes a delta's values."""
        return delta.hlc <= self.hlc and (self.client_id == delta.client_id or self.row == delta.key)

    @property
    def row(self) -> RowKey:
        """Table and id of the erased row; for a client two empty texts, which no row has."""
        return (self.table or "", self.row_id or "")
