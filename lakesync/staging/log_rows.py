"""Converts a push to a row of table `log`, which has the same columns in both stores."""

from __future__ import annotations

from typing import Any

import msgspec

from lakesync.model.types import Claims
from lakesync.staging.head import Head
from lakesync.staging.ledger import signed, tally_of
from lakesync.staging.records import LogEntry
from lakesync.wire.log import PackedDeltas


def next_entry(head: Head, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
    """Return the log row of a push, with the sequence number that follows the head's.

    Args:
        head: of the gateway.
        client_id: of the sender.
        deltas: of the push; they have no body if the lake contains them already.
        arrival: of the push.
        claims: of the sender, as far as the rules read them.
    """
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
    """Return the values of table `log`, in the order of its columns.

    Args:
        entry: the log row.
        committed_ms: the server's wall time in milliseconds.
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
    """Return the stored bytes of the entry's body."""
    return len(entry.body or b"")
