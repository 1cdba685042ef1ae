"""Adapters: the databases and object stores that deltas are flushed to and read from.

The flusher, the pipeline's destinations and `lakesync migrate` use them.
`docs/adapters.md` is the guide for authors of adapters.
"""

from lakesync.adapters.backends.sqlite import SqliteAdapter
from lakesync.adapters.base import ArrowAdapter, DatabaseAdapter, MarkStore, Materialisable, Prunable, StateWriter
from lakesync.adapters.composite import CompositeAdapter, LifecycleAdapter, Route, TierReport
from lakesync.adapters.deltas import (
    ArrowPage,
    BatchChecksum,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    MarkUpdate,
    StoredDelta,
)
from lakesync.adapters.fan_out import FanOutAdapter, Lag
from lakesync.adapters.object_store.base import LakeAdapter, ObjectInfo, ObjectPage
from lakesync.adapters.object_store.deltas import ObjectDeltas
from lakesync.adapters.object_store.local import LocalDisk
from lakesync.adapters.registry import Adapter, as_database, open_adapter, schemes
from lakesync.adapters.transfer.migration import MigrationReport, MigrationScope, migrate_adapter
from lakesync.model.types import Position

__all__ = [
    "Adapter",
    "ArrowAdapter",
    "ArrowPage",
    "BatchChecksum",
    "CompositeAdapter",
    "DatabaseAdapter",
    "DeltaBatch",
    "DeltaPage",
    "DeltaQuery",
    "FanOutAdapter",
    "Lag",
    "LakeAdapter",
    "LifecycleAdapter",
    "LocalDisk",
    "MarkStore",
    "MarkUpdate",
    "Materialisable",
    "MigrationReport",
    "MigrationScope",
    "ObjectDeltas",
    "ObjectInfo",
    "ObjectPage",
    "Position",
    "Prunable",
    "Route",
    "SqliteAdapter",
    "StateWriter",
    "StoredDelta",
    "TierReport",
    "as_database",
    "migrate_adapter",
    "open_adapter",
    "schemes",
]
