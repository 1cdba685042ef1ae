"""Batches of the log on their way to the lake, and the counters by which the pipeline decides what is due."""

from __future__ import annotations

import msgspec


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
    uncut_rules: int | None = None
    """The active rules version, if the newest checkpoint has an older one: that checkpoint is not served, so a new one
    is due."""
    cut_arrival: int | None = None
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
