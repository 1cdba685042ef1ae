"""A push as a row of the log: the same columns in the same order in every store."""

from __future__ import annotations

from typing import Any

import msgspec

from lakesync.model.types import Claims
from lakesync.staging.head import Head
from lakesync.staging.ledger import signed, tally_of
from lakesync.staging.records import LogEntry
from lakesync.wire.log import PackedDeltas


def next_entry(head: Head, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
    """The log row that follows `head`. The lake holds the deltas of those that have no body."""
    return LogEntry(
        gateway=head.gateway,
        shard=head.shard,
        epoch=head.epoch,
        seq=head.last_seq + 1,
        arrival=arrival,
        client_id=client_id,
        hlc_low=deltas.hlc_low,
        hlc_high=deltas.hlc_high,
        count=deltas.number,
        ids=deltas.ids,
        body=deltas.body,
        claims=claims,
    )


def row_of(entry: LogEntry, committed_ms: int) -> tuple[Any, ...]:
    """The values of table `log`, in the order of its columns.

    Args:
        committed_ms: the server's clock in milliseconds.
    """
    return (
        entry.gateway,
        entry.shard,
        entry.epoch,
        entry.seq,
        entry.arrival,
        entry.client_id,
        entry.hlc_low,
        entry.hlc_high,
        entry.count,
        signed(tally_of(entry.ids).id_sum),
        size_of(entry),
        committed_ms,
        msgspec.json.encode(entry.claims),
        entry.ids,
        entry.body,
    )


def size_of(entry: LogEntry) -> int:
    """Stored bytes of the entry's body."""
    return len(entry.body or b"")
