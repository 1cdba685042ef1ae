"""An engine without a data pipeline: `open_gateway`, a gateway in an application's own process, and `Housekeeping`.

Applications call `lakesync.open_gateway`. Deltas (changes of rows) are committed to a *staging store* and, if an
*adapter* is given, flushed to that database or object store. A *destination table* there has the current rows of a
synced table.

`Housekeeping` flushes gateways and updates the destination tables in the background, with a thread for each of the two
tasks (`PeriodicTask`). The gateway server (`gateway/bootstrap.py`) and `open_gateway` create one per engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path

import structlog

from lakesync.adapters.base import Materialisable
from lakesync.adapters.registry import Adapter, as_database, open_adapter
from lakesync.engine.checks import EngineLimits
from lakesync.engine.engine import Engine
from lakesync.engine.gateway import SyncGateway
from lakesync.flush import FlushQueue, FlushReport, FlushSettings, Materialiser, OnFailure, Outlet
from lakesync.model import hlc
from lakesync.model.errors import LakeSyncError
from lakesync.model.schema import TableSchema
from lakesync.rules.model import SyncRules
from lakesync.staging import open_store

log = structlog.get_logger("flush")

POLL_SECONDS = 1.0
"""Seconds between two checks of the flush thresholds."""

QUEUE_SECONDS = 30.0
"""Seconds between two checks of the queue of table updates; a flush triggers a check at once."""

OnFlushed = Callable[[FlushReport], None]
"""Called with the report of a flush that wrote deltas."""
OnFlushFailed = Callable[[str, Exception], None]
"""Called with the gateway's id and the error."""


@contextmanager
def open_gateway(
    gateway_id: str,
    *,
    adapter: Adapter | str | None = None,
    staging: Path | str = "memory://",
    flush: FlushSettings | None = None,
    max_backpressure_bytes: int | None = None,
    schemas: Iterable[TableSchema] = (),
    rules: SyncRules | None = None,
    sources: Mapping[str, Adapter] | None = None,
    queue: FlushQueue | None = None,
    on_flushed: OnFlushed | None = None,
    on_materialisation_failure: OnFailure | None = None,
    background: bool = True,
    wall: Callable[[], int] = hlc.wall_clock,
) -> Iterator[SyncGateway]:
    """Open a gateway for a `with` block, and flush everything at its end.

        with lakesync.open_gateway("shop", adapter="file:///var/lib/shop") as gateway:
            gateway.handle_push(push)

    Args:
        gateway_id: the gateway's id; one staging store and one adapter may contain several gateways.
        adapter: the database or object store that deltas are flushed to, as an open adapter or as a URI. An open
            adapter stays open. None keeps deltas in staging.
        staging: a folder for SQLite, or a URL for `open_store`. With `memory://`, unflushed deltas are lost when the
            process ends.
        flush: thresholds and format of flushes; None flushes after 1 MiB or 30 s.
        max_backpressure_bytes: unflushed bytes above which pushes are rejected; by default twice the `max_buffer_bytes`
            of `flush`, and 1 GiB without an adapter.
        schemas: table schemas to register.
        rules: sync rules to activate, if they differ from the active ones; None keeps the active ones.
        sources: adapters that clients can pull from, by source name. Clients get all deltas of an adapter; see
            `SyncGateway.register_source` for one with deltas of several gateways.
        queue: the queue of updates of destination tables (tables with the current rows, beside the deltas); by default
            in memory, if the adapter maintains such tables.
        on_flushed: called after each flush that wrote deltas, with its report.
        on_materialisation_failure: called for each update of a destination table that failed too often and was set
            aside.
        background: whether a thread flushes when a threshold is exceeded. Otherwise call `flush` when `should_flush`
            returns true.
        wall: returns wall time in milliseconds since 1970.

    Yields:
        The open gateway.

    Raises:
        ConfigurationError: a URL or a setting is invalid.
        SchemaError: a schema is invalid, or conflicts with the registered one.
        StagingUnavailableError: staging cannot be opened.
        FlushError: the final flush failed. The deltas stay in a durable staging store.
    """
    settings = flush or FlushSettings()
    with ExitStack() as closing:
        if isinstance(adapter, str):
            adapter = open_adapter(adapter)
            closing.callback(adapter.close)
        outlet = Outlet.to(adapter, settings, queue) if adapter is not None else None
        limits = _limits(settings, max_backpressure_bytes, flushes=outlet is not None)
        url = f"sqlite://{staging.absolute()}" if isinstance(staging, Path) else staging
        engine = Engine(open_store(url, wall), wall, limits, outlet=outlet)
        engine.open()
        closing.callback(engine.close)
        gateway = engine.gateway(gateway_id)
        for name, source in (sources or {}).items():
            gateway.register_source(name, source)
        for schema in schemas:
            gateway.register_schema(schema)
        if rules is not None and gateway.config().rules != rules:
            gateway.set_rules(rules)
        if outlet is None:
            yield gateway
            return
        housekeeping = Housekeeping(
            engine, outlet, on_flushed=on_flushed, on_materialisation_failure=on_materialisation_failure
        )
        closing.callback(housekeeping.finish)  # acknowledged deltas are flushed also if the block raises
        if background:
            housekeeping.start()
        yield gateway


def _limits(settings: FlushSettings, max_backpressure_bytes: int | None, *, flushes: bool) -> EngineLimits:
    """Return the engine's limits; without an explicit bound, the backlog may be twice the flush threshold."""
    if max_backpressure_bytes is not None:
        return EngineLimits(max_backpressure_bytes=max_backpressure_bytes)
    return EngineLimits(max_backpressure_bytes=2 * settings.max_buffer_bytes) if flushes else EngineLimits()


class PeriodicTask:
    """Calls a function periodically in its own thread, and immediately when woken.

    Calls are due at multiples of the interval after the start, so that they do not drift. Those missed during a long
    call are skipped. An error is logged; each one in a row doubles the time until the next call, up to
    `max_wait_seconds`.
    """

    def __init__(
        self, name: str, work: Callable[[], object], interval_seconds: float = 1.0, max_wait_seconds: float = 30.0
    ) -> None:
        """Create a task; `start` runs it.

        Args:
            name: the thread's name, also for the log.
            work: the function to call.
            interval_seconds: seconds between two calls.
            max_wait_seconds: the most seconds until the next call after an error.
        """
        self._name = name
        self._work = work
        self._interval_seconds = interval_seconds
        self._max_wait_seconds = max_wait_seconds
        self._wake = threading.Event()
        self._stopping = False
        self._failures = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. The first call comes after the first interval."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Call the function now."""
        self._wake.set()

    def stop(self) -> None:
        """Stop after a running call, and wait for the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        """Call the function until `stop`; the thread's function."""
        due = time.monotonic() + self._interval_seconds
        while True:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()  # before the check, so that a later `stop` or `wake` ends the next wait
            if self._stopping:
                return
            wait = self._call()
            due = _next_call(due, wait, time.monotonic())

    def _call(self) -> float:
        """Call the function once, and return the seconds until the next call; an error is logged."""
        try:
            self._work()
        except Exception as error:
            self._failures += 1
            wait = max(
                self._interval_seconds, min(self._max_wait_seconds, self._interval_seconds * 2.0**self._failures)
            )
            log.warning(
                "periodic task failed", task=self._name, reason=str(error), kind=type(error).__name__, again_in=wait
            )
            return wait
        self._failures = 0
        return self._interval_seconds


def _next_call(due: float, wait: float, now: float) -> float:
    """Return the time of the next call, after one that ended at `now`.

    Args:
        due: when that call was due. If the task was woken early, it is later than `now`, and stays due.
        wait: seconds between calls.
        now: a time of the same clock.

    Returns:
        The first time after `now` that is `due`, or a multiple of `wait` after it.
    """
    return due + max(0, int((now - due) // wait) + 1) * wait


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
            on_failed: called after each failed flush, which is retried after 2 s, then 4 s, and so on up to 30 s.
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
