"""Background work of an engine without a pipeline: it flushes gateways and updates the destination's tables.

The gateway server (`gateway/flushing.py`) and `open_gateway` create one `Housekeeping` per engine.
"""

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

POLL_SECONDS = 1.0
"""Seconds between two checks of the flush thresholds."""

QUEUE_SECONDS = 30.0
"""Seconds between two checks of the queue of table updates; a flush triggers a check at once."""

OnFlushed = Callable[[FlushReport], None]
OnFlushFailed = Callable[[str, Exception], None]
"""Called with the gateway's id and the error."""


class Housekeeping:
    """Flushes gateways that exceed a threshold, and updates the destination's tables, in two threads until `stop`.

    A destination table has the current rows of a synced table, beside the deltas that a flush writes.
    """

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
        """Create the threads; `start` starts them. The callbacks run in these threads.

        Args:
            engine: an open engine.
            outlet: the adapter that the engine's gateways flush to, with its settings.
            on_flushed: called after each flush that wrote deltas, with its report.
            on_failed: called after each failed flush, which is retried after `POLL_SECONDS`.
            on_materialisation_failure: called for each table update that failed too often and was set aside.
            materialises: whether to process the queue of table updates; otherwise another process does.
        """
        self._engine = engine
        self._queue = engine.queue if materialises else None
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._on_materialisation_failure = on_materialisation_failure
        database = as_database(outlet.adapter, outlet.settings.flush_format)
        self._destination = database if isinstance(database, Materialisable) else None
        self._flushes = PeriodicTask("flush", self.flush_due, POLL_SECONDS)
        self._tables = PeriodicTask("materialise", self.update_tables, QUEUE_SECONDS)

    def start(self) -> None:
        """Start the threads."""
        self._flushes.start()
        if self._queue is not None and self._destination is not None:
            self._tables.start()
            self._tables.wake()  # an earlier process may have left work

    def wake(self) -> None:
        """Check the flush thresholds now, without waiting for the next check."""
        self._flushes.wake()

    def stop(self) -> None:
        """Stop the threads; a flush or update in progress is completed first."""
        self._flushes.stop()
        self._tables.stop()

    def finish(self) -> None:
        """Stop the threads, flush everything, and process the queue of table updates.

        Raises:
            LakeSyncError: a flush failed; the deltas stay in staging.
            AdapterError: the queue cannot be read or written.
        """
        self.stop()
        self.flush_all()
        self.update_tables()

    def flush_due(self) -> None:
        """Flush the gateways that exceed a threshold or whose flush was requested.

        Raises:
            LakeSyncError: the error of the first gateway whose flush failed, after all were tried.
        """
        self._flush(lambda flusher, backlog: flusher.thresholds.due(backlog))

    def flush_all(self) -> None:
        """Flush every gateway that has unflushed deltas.

        Raises:
            LakeSyncError: the error of the first gateway whose flush failed, after all were tried.
        """
        self._flush(lambda _, backlog: any(shard.deltas for shard in backlog))

    def update_tables(self) -> int:
        """Process the queue of table updates, and return the number of completed jobs; 0 if another process does it.

        Raises:
            AdapterError: the queue cannot be read or written.
        """
        if self._queue is None or self._destination is None:
            return 0
        queue, destination, on_failure = self._queue, self._destination, self._on_materialisation_failure
        workers = [Materialiser(gateway, queue, destination, on_failure) for gateway in self._engine.gateways()]
        return sum(worker.run_once() for worker in workers)

    def _flush(self, is_due: Callable[..., bool]) -> None:
        """Flush each gateway for which `is_due` returns true, given its flusher and the backlog of its shards."""
        failures: list[LakeSyncError] = []
        shards = sorted(self._engine.store.backlog(), key=lambda shard: shard.gateway)
        for gateway_id, backlog in groupby(shards, key=lambda shard: shard.gateway):
            flusher = self._engine.gateway(gateway_id).flusher
            try:
                if is_due(flusher, list(backlog)):
                    self._report(flusher.flush())
            except LakeSyncError as error:
                log.warning("flush failed", gateway=gateway_id, code=error.code, reason=str(error))
                failures.append(error)
                if self._on_failed is not None:
                    self._on_failed(gateway_id, error)
        if failures:
            raise failures[0]

    def _report(self, report: FlushReport) -> None:
        """After a flush that wrote deltas: check the queue of table updates, and call `on_flushed`."""
        if report.batches:
            self._tables.wake()
            if self._on_flushed is not None:
                self._on_flushed(report)
