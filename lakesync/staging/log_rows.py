"""A push as a row of the log: the same columns in the same order in every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lakesync.staging.head import Head
from lakesync.staging.ledger import signed, tally_of
from lakesync.staging.records import LogEntry
from lakesync.types import Claims, RowDelta
from lakesync.wire.log import encode_body, pack_ids


def next_entry(
    head: Head, client_id: str, deltas: Sequence[RowDelta], arrival: int, claims: Claims, *, body: bool = True
) -> LogEntry:
    """The log row that follows `head`.

    Args:
        deltas: one at least.
        body: whether it has one; the lake holds the deltas of those that have none.
    """
    stamps = [delta.hlc for delta in deltas]
    return LogEntry(
        gateway=head.gateway,
        shard=head.shard,
        epoch=head.epoch,
        seq=head.last_seq + 1,
        arrival=arrival,
        client_id=client_id,
        hlc_low=min(stamps),
        hlc_high=max(stamps),
        count=len(deltas),
        ids=pack_ids(deltas),
        body=encode_body(deltas) if body else None,
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
