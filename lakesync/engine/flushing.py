"""What runs beside the gateways of an engine that has no pipeline: their flush, and the tables that follow it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import structlog

from lakesync.adapters.base import Materialisable
from lakesync.adapters.registry import as_database
from lakesync.engine.engine import Engine
from lakesync.flush import FlushReport, Materialiser, Outlet
from lakesync.flush.materialiser import OnFailure
from lakesync.flush.periodic import PeriodicTask
from lakesync.model.errors import LakeSyncError

log = structlog.get_logger("flush")

LOOK_SECONDS = 1.0
"""Between two looks at what waits."""

WORK_SECONDS = 30.0
"""Between two looks at the queue of tables, which a flush cuts short."""

OnFlushed = Callable[[FlushReport], None]
OnFlushFailed = Callable[[str, Exception], None]
"""Told of the gateway's id and what went wrong."""


class Housekeeping:
    """Flushes every gateway that is due, and brings the destination's tables in line, until it is stopped."""

    def __init__(
        self,
        engine: Engine,
        outlet: Outlet,
        *,
        on_flushed: OnFlushed | None = None,
        on_failed: OnFlushFailed | None = None,
        on_materialisation_failure: OnFailure | None = None,
        materialises: bool = True,
    ) -> None:
        """Args:
        engine: open.
        outlet: the one that the engine's gateways flush to.
        on_flushed: told of each flush that carried something.
        on_failed: told of each flush that failed, and is tried again.
        on_materialisation_failure: told of each table whose work failed for good.
        materialises: whether the queue is worked off here; otherwise a process of its own does that.
        """
        self._engine = engine
        self._queue = engine.queue if materialises else None
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._on_materialisation_failure = on_materialisation_failure
        database = as_database(outlet.adapter, outlet.settings.flush_format)
        self._destination = database if isinstance(database, Materialisable) else None
        self._flushes = PeriodicTask("flush", self.flush_due, LOOK_SECONDS)
        self._tables = PeriodicTask("materialise", self.work_off, WORK_SECONDS)

    def start(self) -> None:
        """Begin, in threads of its own."""
        self._flushes.start()
        if self._queue is not None and self._destination is not None:
            self._tables.start()
            self._tables.wake()  # what a process before this one left

    def wake(self) -> None:
        """Look now."""
        self._flushes.wake()

    def stop(self) -> None:
        """End after what is under way."""
        self._flushes.stop()
        self._tables.stop()

    def finish(self) -> None:
        """End, and carry everything that waits.

        Raises:
            As `flush_due` and `work_off`.
        """
        self.stop()
        self.flush_all()
        self.work_off()

    def flush_due(self) -> None:
        """Flush the gateways in which too much waits, or for too long, or that were asked to.

        Raises:
            LakeSyncError: of the first gateway that could not be flushed, when all were tried.
        """
        self._flush(lambda flusher, backlog: flusher.thresholds.due(backlog))

    def flush_all(self) -> None:
        """Flush every gateway in which anything waits.

        Raises:
            As `flush_due`.
        """
        self._flush(lambda _, backlog: any(shard.deltas for shard in backlog))

    def work_off(self) -> int:
        """Do what waits in the queue of tables; how many jobs were done.

        Raises:
            AdapterError: the queue cannot be read or written.
        """
        if self._queue is None or self._destination is None:
            return 0
        queue, destination, failed = self._queue, self._destination, self._on_materialisation_failure
        workers = [Materialiser(gateway, queue, destination, failed) for gateway in self._engine.gateways()]
        return sum(worker.run_once() for worker in workers)

    def _flush(self, wanted: Callable[..., bool]) -> None:
        failures: list[LakeSyncError] = []
        shards = sorted(self._engine.store.backlog(), key=lambda shard: shard.gateway)
        for gateway_id, backlog in groupby(shards, key=lambda shard: shard.gateway):
            flusher = self._engine.gateway(gateway_id).flusher
            try:
                if wanted(flusher, list(backlog)):
                    self._tell(flusher.flush())
            except LakeSyncError as error:
                log.warning("a flush failed", gateway=gateway_id, code=error.code, reason=str(error))
                failures.append(error)
                if self._on_failed is not None:
                    self._on_failed(gateway_id, error)
        if failures:
            raise failures[0]

    def _tell(self, report: FlushReport) -> None:
        if report.batches:
            self._tables.wake()
            if self._on_flushed is not None:
                self._on_flushed(report)
