"""Requests to erase something for good."""

from __future__ import annotations

import msgspec


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
