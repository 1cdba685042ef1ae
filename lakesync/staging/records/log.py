"""The log and its way to the lake: log rows, batches, the ledger, checkpoints and erasures.

Gateways write the log. The pipeline reads it, confirms batches and erasures, and publishes checkpoints, which gateways
then serve to new clients.
"""

from __future__ import annotations

import msgspec

from lakesync.model.types import Claims

ARRIVAL_STEP = 256
"""Arrivals are multiples of this; the numbers between two arrivals are used for page marks."""


class LogEntry(msgspec.Struct, frozen=True):
    """One committed push: the unit of flush, replay and trim."""

    gateway: str
    shard: str
    epoch: int
    seq: int
    """Dense within (gateway, shard, epoch), from 1."""
    arrival: int
    """The highest arrival of the push, which is the arrival of each of its deltas in the lake."""
    client_id: str
    hlc_low: int
    hlc_high: int
    count: int
    ids: bytes
    """The output of `wire.log.pack_ids`; it stays when the body is trimmed."""
    body: bytes | None
    """The output of `wire.log.encode_body`; None once trimmed."""
    claims: Claims
    """The sender's claims that the rules read, for a replay."""


class LogSource(msgspec.Struct, frozen=True):
    """Where tasks read committed log rows, beside the store's owner: a JDBC URL and a table."""

    url: str
    table: str
    properties: dict[str, str] = {}


class Batch(msgspec.Struct, frozen=True):
    """A planned flush: a prefix of the unflushed log, fixed before Spark starts."""

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
    """The unflushed part of one shard of a gateway, and how far the lake is."""

    gateway: str
    shard: str
    epoch: int
    flushed_seq: int
    last_seq: int
    last_arrival: int
    deltas: int
    bytes: int
    oldest_ms: int | None
    """Server wall time of the oldest unflushed commit; None if nothing is unflushed."""
    flush_requested_ms: int | None
    """When `/admin/flush` requested a flush that has not been served yet."""
    flushed_ms: int | None = None
    """Server wall time when a batch was last confirmed; None before the first."""
    flushed_snapshot: int | None = None
    """The Iceberg snapshot of `deltas` in which it was read back; None if a flush without a pipeline wrote it."""
    rules_without_checkpoint: int | None = None
    """The active rules version, if the newest checkpoint has an older one: that checkpoint is not served, so a new one
    is due."""
    checkpoint_arrival: int | None = None
    """Arrival of the newest published checkpoint; None before the first."""


class LedgerDay(msgspec.Struct, frozen=True):
    """Count and id sum of the accepted deltas of one UTC day of arrival."""

    gateway: str
    day: str
    """`YYYY-MM-DD`."""
    count: int
    id_sum: int
    """Sum of `delta.id_number`, modulo 2**64."""
    flushed_count: int
    flushed_id_sum: int


class ShardCutPoint(msgspec.Struct, frozen=True):
    """One shard at a cut point."""

    epoch: int
    rules_version: int
    """Each shard counts its changes of rules."""


class CutPoint(msgspec.Struct, frozen=True):
    """Where a checkpoint can be made: every push so far has an arrival up to it, every later push one above."""

    gateway: str
    arrival: int
    epoch: int
    rules_version: int | None
    """The active rules; None while a re-index is running, when no checkpoint can be made."""
    shards: dict[str, ShardCutPoint] = {}
    """By shard, if tables are sharded."""


class CheckpointTable(msgspec.Struct, frozen=True):
    """One table of a checkpoint."""

    table: str
    snapshot_id: int
    rows: int
    frames: tuple[str, ...]
    """URIs of its frame files, in order."""
    bytes: int


class Checkpoint(msgspec.Struct, frozen=True):
    """A consistent state of all tables of a gateway at one arrival."""

    gateway: str
    epoch: int
    arrival: int
    rules_version: int
    tables: tuple[CheckpointTable, ...]
    created_ms: int
    shards: dict[str, ShardCutPoint] = {}
    """As in the cut point; each shard's store gets its own part."""


class Erasure(msgspec.Struct, frozen=True):
    """The permanent deletion of one row, or of everything that one client wrote."""

    gateway: str
    seq: int
    """Counts the gateway's erasures from 1."""
    table: str | None
    row_id: str | None
    client_id: str | None
    """Either this is set, or `table` and `row_id`."""
    hlc: int
    """Deltas up to this hlc are erased, later ones are not."""
    arrival: int
    """Once the lake contains everything up to this arrival, it contains every erased delta."""
    requested_ms: int
    deltas: int = 0
    """Deltas in the log that lost their values; deltas that were trimmed before had none."""
    row_count: int = 0
    """Rows that were deleted or lost columns."""
    done_ms: int | None = None
    """Server wall time when staging had erased everything."""
    lake_ms: int | None = None
    """Server wall time when the lake had erased everything."""
    shards: tuple[str, ...] = ()
    """Shards whose deltas it covers, if tables are sharded: each shard has an erasure of its own."""
