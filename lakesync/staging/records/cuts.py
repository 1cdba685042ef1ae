"""Checkpoints: consistent states of all tables of a gateway at one arrival.

The pipeline makes a checkpoint at a cut point that staging returned, and publishes it to staging, from where the
gateway serves it to new clients.
"""

from __future__ import annotations

import msgspec


class HeldShard(msgspec.Struct, frozen=True):
    """One shard at a cut point."""

    epoch: int
    rules_version: int
    """Each shard counts its changes of rules."""


class Hold(msgspec.Struct, frozen=True):
    """Where a checkpoint can be made: every push so far has an arrival up to it, every later push one above."""

    gateway: str
    arrival: int
    epoch: int
    rules_version: int | None
    """The active rules; None while a re-index is running, when no checkpoint can be made."""
    shards: dict[str, HeldShard] = {}
    """By shard, if tables are sharded."""


class CutTable(msgspec.Struct, frozen=True):
    """One table of a checkpoint."""

    table: str
    snapshot_id: int
    rows: int
    frames: tuple[str, ...]
    """URIs of its frame files, in order."""
    bytes: int


class Cut(msgspec.Struct, frozen=True):
    """A consistent state of all tables of a gateway at one arrival."""

    gateway: str
    epoch: int
    arrival: int
    rules_version: int
    tables: tuple[CutTable, ...]
    created_ms: int
    shards: dict[str, HeldShard] = {}
    """As in the cut point; each shard's store gets its own part."""
