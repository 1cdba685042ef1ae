"""Batches of the log on their way to the lake."""

from __future__ import annotations

import msgspec


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
    cut_arrival: int | None = None
    """The arrival of the newest published cut; None before the first."""


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
