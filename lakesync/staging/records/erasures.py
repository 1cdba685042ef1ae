"""The record of an erasure: what is erased, and how far that is."""

from __future__ import annotations

import msgspec


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
