"""Consistent states of all tables of a gateway at one arrival."""

from __future__ import annotations

import msgspec


class HeldShard(msgspec.Struct, frozen=True):
    """One shard of a gateway at the arrival that all of its shards were held at."""

    epoch: int
    rules_version: int
    """Each shard counts changes of rules by itself."""


class Hold(msgspec.Struct, frozen=True):
    """Where a gateway can be cut: every push so far is at or below the arrival, and every later one above it."""

    gateway: str
    arrival: int
    epoch: int
    rules_version: int | None
    """In force there; None while rows are still brought in line with rules that changed, when there is no cut."""
    shards: dict[str, HeldShard] = {}
    """By shard, where tables are sharded."""


class CutTable(msgspec.Struct, frozen=True):
    """One table of a cut."""

    table: str
    snapshot_id: int
    rows: int
    frames: tuple[str, ...]
    """URIs of its checkpoint frame files, in order."""
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
    """As in the `Hold` that it was made at; each shard's store gets its own part."""
