"""The adapters that the suite runs over: one line each. Add yours here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lakesync.adapters import DatabaseAdapter, LakeAdapter, LocalDisk, ObjectDeltas, SqliteAdapter

OBJECT_STORES: dict[str, Callable[[Path], LakeAdapter]] = {
    "local disk": lambda folder: LocalDisk(folder / "objects"),
}
"""An object store over a fresh folder; called again, another one over the same objects."""

DATABASES: dict[str, Callable[[Path], DatabaseAdapter]] = {
    "sqlite": lambda folder: SqliteAdapter(folder / "deltas.db"),
    "parquet on local disk": lambda folder: ObjectDeltas(LocalDisk(folder / "objects")),
    "json on local disk": lambda folder: ObjectDeltas(LocalDisk(folder / "objects"), "json"),
}
"""A place for deltas over a fresh folder; called again, another one over the same deltas."""

KEEPS_BATCHES = {"parquet on local disk", "json on local disk"}
"""These give a delta, in order of arrival, once for each batch that it came in."""

COARSE_ARRIVALS = {"json on local disk"}
"""These give every delta of a batch the batch's last arrival."""
