"""The log: pushes as they are flushed, replayed and trimmed."""

from __future__ import annotations

import msgspec

from lakesync.model.types import Claims

ARRIVAL_STEP = 256
"""Arrivals are multiples of this; what lies between two of them is free for page marks."""


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


class LogSource(msgspec.Struct, frozen=True):
    """Where a flush reads committed log rows, beside the store's owner: a JDBC address and the columns' home."""

    url: str
    table: str
    properties: dict[str, str] = {}
