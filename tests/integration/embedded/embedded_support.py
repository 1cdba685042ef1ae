"""Clients of a gateway in the same process, and adapters that fail on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from lakesync.adapters import DeltaQuery, LocalDisk, ObjectDeltas, SqliteAdapter
from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.deltas import BatchChecksum, DeltaBatch, StoredDelta
from lakesync.engine import Engine, EngineLimits, SyncGateway
from lakesync.flush import FlushQueue, FlushSettings, Outlet
from lakesync.model.delta import extract_delta
from lakesync.model.errors import AdapterError
from lakesync.model.types import RowDelta, SyncPush
from lakesync.staging import open_store
from lakesync.testing import ManualClock

KINDS: dict[str, Callable[[Path], Any]] = {
    "parquet": lambda folder: ObjectDeltas(LocalDisk(folder / "objects")),
    "json": lambda folder: ObjectDeltas(LocalDisk(folder / "objects"), "json"),
    "sqlite": lambda folder: SqliteAdapter(folder / "deltas.db"),
}


class Author:
    """A client that creates deltas."""

    def __init__(self, client_id: str, clock: ManualClock) -> None:
        self.client_id = client_id
        self._clock = clock
        self._made = 0

    def delta(self, row: str, after: dict[str, Any] | None, *, before=None, table: str = "notes") -> RowDelta:
        """Create one edit, at the clock's time."""
        self._made += 1
        hlc = (self._clock.now_ms << 16) + self._made
        if after is None and before is None:
            before = {}
        made = extract_delta(before, after, table=table, row_id=row, client_id=self.client_id, hlc=hlc)
        assert made is not None
        return made

    def push(self, gateway: SyncGateway, *deltas: RowDelta) -> tuple[RowDelta, ...]:
        """Push some deltas."""
        gateway.handle_push(SyncPush(self.client_id, deltas))
        return deltas


@contextmanager
def gateway_over(
    clock: ManualClock,
    adapter: DatabaseAdapter | None = None,
    *,
    staging: str = "memory://",
    settings: FlushSettings = FlushSettings(),  # noqa: B008 frozen
    queue: FlushQueue | None = None,
    limits: EngineLimits | None = None,
) -> Iterator[SyncGateway]:
    """The gateway `shop`, without a background thread."""
    outlet = Outlet(adapter, settings, queue) if adapter is not None else None
    engine = Engine(open_store(staging, clock), clock, limits, outlet=outlet)
    engine.open()
    try:
        yield engine.gateway("shop")
    finally:
        engine.close()


def kept(adapter: DatabaseAdapter, gateway: str = "shop") -> list[StoredDelta]:
    """Everything that an adapter stores."""
    found, query = [], DeltaQuery(gateway=gateway, limit=7)
    while True:
        page = adapter.query_deltas_since(query)
        found += page.deltas
        if page.end is None:
            return found
        query = msgspec.structs.replace(query, after=page.end)


def ids(deltas) -> Counter[str]:
    """The delta ids, with their numbers."""
    return Counter(each.delta.delta_id if isinstance(each, StoredDelta) else each.delta_id for each in deltas)


class Failing:
    """An adapter that fails a given number of times, before or after it has written."""

    def __init__(self, inner: DatabaseAdapter) -> None:
        self.inner = inner
        self.before = 0
        self.after = 0
        self.less = 0
        self.batches: list[str] = []

    def insert_deltas(self, batch: DeltaBatch) -> BatchChecksum:
        """Write, or fail."""
        self.batches.append(batch.batch_id)
        if self.before:
            self.before -= 1
            raise AdapterError("the backend does not answer")
        held = self.inner.insert_deltas(batch)
        if self.after:
            self.after -= 1
            raise AdapterError("the answer was lost")
        if self.less:
            self.less -= 1
            return BatchChecksum(held.deltas - 1, held.id_sum)
        return held

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def objects(folder: Path, prefix: str = "deltas/") -> list[str]:
    """The keys of objects on a local disk."""
    return [info.key for info in LocalDisk(folder / "objects").list_objects(prefix).objects]
