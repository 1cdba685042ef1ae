"""Backends: where deltas are flushed to, and where they may be pulled from. `docs/adapters.md` is for authors."""

from lakesync.adapters.base import (
    Adapter,
    DatabaseAdapter,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    Held,
    Materialisable,
    Position,
    StoredDelta,
)
from lakesync.adapters.local import LocalDisk
from lakesync.adapters.object_store import LakeAdapter, ObjectInfo, ObjectPage
from lakesync.adapters.objects import ObjectDeltas
from lakesync.adapters.registry import as_database, open_adapter, schemes
from lakesync.adapters.sqlite import SqliteAdapter

__all__ = [
    "Adapter",
    "DatabaseAdapter",
    "DeltaBatch",
    "DeltaPage",
    "DeltaQuery",
    "Held",
    "LakeAdapter",
    "LocalDisk",
    "Materialisable",
    "ObjectDeltas",
    "ObjectInfo",
    "ObjectPage",
    "Position",
    "SqliteAdapter",
    "StoredDelta",
    "as_database",
    "open_adapter",
    "schemes",
]
