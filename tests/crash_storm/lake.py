"""The pipeline of a storm: plans, reads, confirms and trims batches, and keeps them as the lake would."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg

from lakesync.model.delta import id_number
from lakesync.model.errors import LakeSyncError
from lakesync.model.types import RowDelta
from lakesync.staging.records import Batch
from lakesync.staging.remote import RemoteStore
from lakesync.wire.log import decode_body
from tests.integration.gateway_support import SERVICE

_QUERY = "SELECT body FROM log WHERE gateway = ? AND epoch = ? AND seq BETWEEN ? AND ? AND shard = ? ORDER BY seq"


class Lake(threading.Thread):
    """Flushes continuously. A batch is written once, under its id, however often the gateway is killed meanwhile."""

    def __init__(self, staging: str, where: Callable[[], str]) -> None:
        super().__init__(name="lake", daemon=True)
        self.batches: dict[str, list[RowDelta]] = {}
        self.failure: str | None = None
        self._staging = staging
        self._where = where
        self._ends = threading.Event()

    def end(self) -> None:
        """Finish the current flush, and stop."""
        self._ends.set()

    def run(self) -> None:
        try:
            self._run()
        except Exception as exc:
            self.failure = f"the pipeline ended: {exc!r}"
            raise

    def _run(self) -> None:
        while not self._ends.wait(0.2):
            store = RemoteStore(self._where(), SERVICE, retry_seconds=0.1)
            try:
                self._flush(store)
            except (LakeSyncError, psycopg.Error, sqlite3.Error):
                continue  # the gateway is down; planned batches remain planned
            finally:
                store.close()

    def finish(self) -> None:
        """Flush the rest through a running gateway."""
        store = RemoteStore(self._where(), SERVICE)
        try:
            while any(waiting.deltas for waiting in store.backlog()):
                self._flush(store)
        finally:
            store.close()

    def deltas(self) -> list[RowDelta]:
        """Every flushed delta."""
        return [delta for written in self.batches.values() for delta in written]

    def _flush(self, store: RemoteStore) -> None:
        for waiting in store.backlog():
            batch = store.plan(waiting.gateway, waiting.shard, 500)
            if batch is not None:
                if batch.batch_id not in self.batches:
                    self.batches[batch.batch_id] = self._read(batch)
                written = self.batches[batch.batch_id]
                total = sum(id_number(delta.delta_id) for delta in written) % 2**64
                store.confirm(batch.batch_id, len(written), total)
            store.trim(waiting.gateway, waiting.shard)

    def _read(self, batch: Batch) -> list[RowDelta]:
        scope = (batch.gateway, batch.epoch, batch.from_seq, batch.to_seq, batch.shard)
        return [delta for body in _bodies(self._staging, _QUERY, scope) for delta in decode_body(body)]


def _bodies(staging: str, query: str, values: tuple[object, ...]) -> list[bytes]:
    """Read bodies of log rows without the gateway, as Spark does."""
    if staging.startswith("sqlite://"):
        path = Path("/" + staging.removeprefix("sqlite://").lstrip("/")) / "log.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as file:
            return [body for (body,) in file.execute(query, values)]
    with psycopg.connect(staging) as connection:
        query = query.replace("?", "%s").replace("FROM log", "FROM lakesync.log")
        return [body for (body,) in connection.execute(query, values).fetchall()]
