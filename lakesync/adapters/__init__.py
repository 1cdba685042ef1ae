"""Adapters: databases and object stores that keep *deltas*, the changes of rows that clients have made.

A gateway without a pipeline flushes to one. The pipeline copies the lake's deltas to others (*destinations*), clients
pull from some (*sources*), and `lakesync migrate` copies from one to another. This module exports what programs and
authors of adapters need; `docs/adapters.md` is their guide.
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
from lakesync.adapters.fan_out import FanOutAdapter, SecondaryLag
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
    "SecondaryLag",
    "SqliteAdapter",
    "StateWriter",
    "StoredDelta",
    "TierReport",
    "as_database",
    "migrate_adapter",
    "open_adapter",
    "schemes",
]
