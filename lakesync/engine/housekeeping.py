"""Background work of an engine without a data pipeline: flushes, and updates of destination tables.

`Housekeeping` has a thread for each of the two tasks (`PeriodicTask`). The gateway server (`gateway/bootstrap.py`) and
`open_gateway` create one per engine.

A *gateway* is one app's stream of changes. A *flush* writes its deltas (changes of rows) from the staging store, the
database that pushes are committed to, to an adapter: a database or object store. A gateway's flush is *due* if its
unflushed deltas are too many bytes or too old (`flush.Thresholds`), or if it was requested. If the adapter is a
database, it also has a *destination table* with the current rows of each synced table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

import structlog

from lakesync.adapters.base import Materialisable
from lakesync.engine.engine import Engine
from lakesync.flush import Flusher, FlushReport, Materialiser, OnFailure, Outlet
from lakesync.model.backoff import doubled_wait
from lakesync.model.errors import LakeSyncError, log_code
from lakesync.staging.records import Backlog

log = structlog.get_logger("flush")

POLL_SECONDS = 1.0
"""Seconds between two checks for due flushes."""

QUEUE_SECONDS = 30.0
"""Seconds between two checks of the queue of table updates; a flush triggers a check immediately."""

_MAX_WAIT_SECONDS = 30.0
"""The most seconds between a failure and the next attempt."""

OnFlushed = Callable[[FlushReport], None]
"""Called with the report of a flush that wrote deltas."""
OnFlushFailed = Callable[[str, Exception], None]
"""Called with the gateway's id and the error."""


class PeriodicTask:
    """Calls a function periodically in its own thread, and immediately when woken, unless the last call failed.

    Calls are due at multiples of the interval after the start, so that they do not drift. Those missed during a long
    call are skipped. An error is logged; each one in a row doubles the time until the next call, up to
    `max_wait_seconds`.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        interval_seconds: float = 1.0,
        max_wait_seconds: float = _MAX_WAIT_SECONDS,
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
        self._stopping = threading.Event()
        self._failures = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. The first call comes after the first interval."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Call the function now; after an error, when the retry is due."""
        self._wake.set()

    def stop(self) -> None:
        """Stop after a running call, and wait for the thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        """Call the function until `stop`; the thread's function."""
        due = time.monotonic() + self._interval_seconds
        while True:
            awaited = self._stopping if self._failures else self._wake
            awaited.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()  # before the check, so that a later `stop` or `wake` ends the next wait
            if self._stopping.is_set():
                return
            wait = self._call()
            due = _next_call(due, wait, time.monotonic())

    def _call(self) -> float:
        """Call the function once, and return the seconds until the next call; an error is logged."""
        try:
            self._work()
        except Exception as error:
            self._failures += 1
            longer = doubled_wait(self._interval_seconds, self._max_wait_seconds, self._failures)
            wait = max(self._interval_seconds, longer)
            log.warning(
                "periodic task failed", task=self._name, reason=str(error), kind=type(error).__name__, again_in=wait
            )
            return wait
        self._failures = 0
        return self._interval_seconds


class Housekeeping:
    """Flushes gateways whose flush is due, and updates the destination's tables, in two threads until `stop`."""

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
        """Create the tasks; `start` starts their threads, in which the callbacks run.

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
        database = outlet.database
        self._destination = database if isinstance(database, Materialisable) else None
        self._retries: dict[str, _Retry] = {}
        """The retries of gateways whose last flush failed, by gateway id."""
        self._flushes = PeriodicTask("flush", self.flush_due, POLL_SECONDS)
        self._tables = PeriodicTask("materialise", self.update_tables, QUEUE_SECONDS)

    def start(self) -> None:
        """Start the threads."""
        self._flushes.start()
        if self._queue is not None and self._destination is not None:
            self._tables.start()
            self._tables.wake()  # an earlier process may have left work

    def stop(self) -> None:
        """Stop the threads; a flush or update in progress is completed first."""
        self._flushes.stop()
        self._tables.stop()

    def finish(self) -> None:
        """Stop the threads, flush everything, and process the queue of table updates.

        Raises:
            Exception: a flush failed, as in `flush_all`; its deltas stay in staging.
            AdapterError, StagingUnavailableError: the queue cannot be read or written.
        """
        self.stop()
        self.flush_all()
        self.update_tables()

    def flush_due(self) -> None:
        """Flush the gateways whose flush is due. One that fails waits for its retry, and delays no other."""
        now = time.monotonic()
        retries = {gateway_id: retry for gateway_id, retry in self._retries.items() if retry.at > now}

        def is_due(flusher: Flusher, backlog: list[Backlog]) -> bool:
            return backlog[0].gateway not in retries and flusher.thresholds.reason(backlog) is not None

        for gateway_id in self._flush(is_due):
            failures = self._retries[gateway_id].failures + 1 if gateway_id in self._retries else 1
            wait = doubled_wait(POLL_SECONDS, _MAX_WAIT_SECONDS, failures)
            retries[gateway_id] = _Retry(failures, time.monotonic() + wait)
        self._retries = retries

    def flush_all(self) -> None:
        """Flush every gateway that has unflushed deltas, after a flush that the application has started.

        Raises:
            Exception: the error of the first gateway whose flush failed, after all were tried; LakeSyncError unless an
                adapter or a callback raised another one.
        """
        for error in self._flush(lambda _, backlog: any(shard.deltas for shard in backlog), wait=True).values():
            raise error

    def update_tables(self) -> int:
        """Process the queue of table updates.

        Returns:
            The number of completed jobs; 0 if another process does them, or if the adapter has no destination tables.

        Raises:
            AdapterError, StagingUnavailableError: the queue cannot be read or written.
        """
        if self._queue is None or self._destination is None:
            return 0
        queue, destination, on_failure = self._queue, self._destination, self._on_materialisation_failure
        workers = [Materialiser(gateway, queue, destination, on_failure) for gateway in self._engine.gateways()]
        return sum(worker.run_once() for worker in workers)

    def _flush(self, is_due: Callable[[Flusher, list[Backlog]], bool], *, wait: bool = False) -> dict[str, Exception]:
        """Flush some gateways, and return the errors of those whose flush failed, by gateway id.

        Args:
            is_due: returns whether to flush a gateway, given its flusher and its unflushed deltas in each *shard* (a
                staging store with some of the tables; without sharding there is one).
            wait: whether to wait for a flush of a gateway that the application has started; otherwise it is an error.
        """
        failures: dict[str, Exception] = {}
        shards = sorted(self._engine.store.backlog(), key=lambda shard: shard.gateway)
        for gateway_id, backlog in groupby(shards, key=lambda shard: shard.gateway):
            try:
                flusher = self._engine.gateway(gateway_id).flusher
                if is_due(flusher, list(backlog)):
                    self._report(flusher.flush(wait=wait))
            except Exception as error:  # an application's adapter or callback may raise any
                failures[gateway_id] = error
                self._report_failure(gateway_id, error)
        return failures

    def _report_failure(self, gateway_id: str, error: Exception) -> None:
        """Log a failed flush and call `on_failed`, whose own error is only logged."""
        is_expected = isinstance(error, LakeSyncError)
        log.warning(
            "flush failed", gateway=gateway_id, code=log_code(error), reason=str(error), exc_info=not is_expected
        )
        if self._on_failed is not None:
            try:
                self._on_failed(gateway_id, error)
            except Exception:
                log.exception("callback on_failed raised", gateway=gateway_id)

    def _report(self, report: FlushReport) -> None:
        """After a flush that wrote deltas: check the queue of table updates, and call `on_flushed`."""
        if report.batches:
            self._tables.wake()
            if self._on_flushed is not None:
                self._on_flushed(report)


def _next_call(due: float, wait: float, now: float) -> float:
    """Return the time of the next call, after one that ended at `now`.

    Args:
        due: when that call was due, in seconds; later than `now` if the task was woken early.
        wait: seconds between calls.
        now: a time of the same clock.

    Returns:
        The first time after `now` among `due`, `due + wait`, `due + 2 * wait`, and so on.
    """
    return due + max(0, int((now - due) // wait) + 1) * wait


class _Retry(NamedTuple):
    """When a failed flush is retried."""

    failures: int
    """Number of failures in a row."""
    at: float
    """The monotonic time of the retry."""
