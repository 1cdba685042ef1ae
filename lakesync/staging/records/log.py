"""A row of the log, and the address at which other processes read the log."""

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
