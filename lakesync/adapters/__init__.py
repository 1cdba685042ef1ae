"""Backends: where deltas are flushed to, and where they may be pulled from. `docs/adapters.md` is for authors."""

from lakesync.adapters.base import (
    Adapter,
    ArrowAdapter,
    ArrowPage,
    DatabaseAdapter,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    Held,
    Mark,
    Marked,
    Materialisable,
    Position,
    Prunable,
    StateWriter,
    StoredDelta,
)
from lakesync.adapters.composite import CompositeAdapter, Route
from lakesync.adapters.fan_out import FanOutAdapter, Lag
from lakesync.adapters.lifecycle import LifecycleAdapter, TierReport
from lakesync.adapters.local import LocalDisk
from lakesync.adapters.migrate import MigrationReport, Scope, migrate_adapter
from lakesync.adapters.object_store import LakeAdapter, ObjectInfo, ObjectPage
from lakesync.adapters.objects import ObjectDeltas
from lakesync.adapters.registry import as_database, open_adapter, schemes
from lakesync.adapters.sqlite import SqliteAdapter

__all__ = [
    "Adapter",
    "ArrowAdapter",
    "ArrowPage",
    "CompositeAdapter",
    "DatabaseAdapter",
    "DeltaBatch",
    "DeltaPage",
    "DeltaQuery",
    "FanOutAdapter",
    "Held",
    "Lag",
    "LakeAdapter",
    "LifecycleAdapter",
    "LocalDisk",
    "Mark",
    "Marked",
    "Materialisable",
    "MigrationReport",
    "ObjectDeltas",
    "ObjectInfo",
    "ObjectPage",
    "Position",
    "Prunable",
    "Route",
    "Scope",
    "SqliteAdapter",
    "StateWriter",
    "StoredDelta",
    "TierReport",
    "as_database",
    "migrate_adapter",
    "open_adapter",
    "schemes",
]
