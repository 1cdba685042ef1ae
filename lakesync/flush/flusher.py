"""Flush for gateways without a pipeline, `Flusher`, and the updates of destination tables after it, `Materialiser`.

A flush plans a batch, writes it to an adapter, confirms it, and trims the log. A batch is the oldest part of the
unflushed log. The store's `plan` records its bounds and id before anything is written. After a crash the next flush
gets the same batch from `plan` and writes it again under the same id, which changes nothing if it is already stored.
The flush then confirms the batch to the store, with the checksum that the adapter returns for the stored batch: only
confirmed deltas may be trimmed, that is deleted from the log. An embedded gateway and the gateway server with
`[flush] to_uri` call it.

A destination table has the merged rows of one synced table, for adapters that are databases. After a batch was written,
a job for each of its tables goes into the flush queue. The job rewrites the rows of the destination table that the
batch has changed. An embedded gateway, the gateway server and `lakesync materialise` run the jobs by `Materialiser`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec
import stamina
import structlog

from lakesync.adapters.base import DatabaseAdapter, Materialisable
from lakesync.adapters.deltas import BatchChecksum, DeltaBatch, DeltaIdentity, StoredDelta, checksum_of
from lakesync.adapters.registry import Adapter, as_database
from lakesync.flush.queue import FlushContext, FlushedTable, FlushJob, FlushQueue, StagingFlushQueue
from lakesync.flush.thresholds import BacklogStats, FlushSettings, Thresholds
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, FlushError, LakeSyncError, TransientError
from lakesync.staging.log_reader import LogRange, read_log
from lakesync.staging.records import Batch
from lakesync.staging.store import StagingStore, TransactionStore

log = structlog.get_logger("flush")
OnFailure = Callable[[str, int, Exception], None]
"""Called when a job has failed permanently, with its table, the number of deltas of that table in the job's batch, and
the error."""


class FlushReport(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one flush."""

    gateway_id: str
    batches: int
    deltas: int
    bytes: int
    """Bytes that were flushed from staging's log."""
    seconds: float


class Outlet(NamedTuple):
    """The adapter that a gateway flushes to, with thresholds and the queue for destination tables."""

    adapter: Adapter
    settings: FlushSettings = FlushSettings()
    queue: FlushQueue | None = None
    """Receives a job for each flushed table with a schema, to update its destination table.

    None queues no jobs. The engine replaces None by a queue in its staging store if the adapter has destination tables
    (`with_queue_in`).
    """

    @staticmethod
    def to(adapter: Adapter, settings: FlushSettings, queue: FlushQueue | None = None) -> Outlet:
        """Return an outlet for an adapter. An object store becomes a `DatabaseAdapter` that writes the flush format.

        Args:
            adapter: the adapter, a database or an object store.
            settings: thresholds and format.
            queue: as in `Outlet.queue`.
        """
        return Outlet(as_database(adapter, settings.flush_format), settings, queue)

    def with_queue_in(self, store: TransactionStore) -> Outlet:
        """Return the outlet with a queue in the staging store, if it has none and needs one for destination tables."""
        database = as_database(self.adapter, self.settings.flush_format) if self.queue is None else None
        return self._replace(queue=StagingFlushQueue(store)) if isinstance(database, Materialisable) else self


class _BatchWriter(NamedTuple):
    """Writes batches to the adapter, and skips those that it is known to store."""

    database: DatabaseAdapter
    stored_deltas: frozenset[DeltaIdentity]
    """Deltas that were read from the adapter, so that it certainly stores them."""

    def write(self, batch: DeltaBatch) -> BatchChecksum:
        """Write a batch unless all of its deltas are known to be stored; return the checksum of what is stored."""
        if self.stored_deltas and all(stored.identity in self.stored_deltas for stored in batch.deltas):
            return checksum_of(batch.deltas)
        return self.database.insert_deltas(batch)


class Flusher:
    """Flushes one gateway, one flush at a time. Safe to use from several threads and processes."""

    def __init__(self, gateway_id: str, store: StagingStore, wall: Callable[[], int], outlet: Outlet | None) -> None:
        """Create a flusher.

        Args:
            gateway_id: the gateway id.
            store: the staging store.
            wall: returns the server's time, in milliseconds since 1970.
            outlet: where to flush to; None if this process does not flush.
        """
        self.gateway_id = gateway_id
        self.backlog_stats = BacklogStats(gateway_id, store)
        self.settings = outlet.settings if outlet is not None else FlushSettings()
        self.thresholds = Thresholds(self.backlog_stats, self.settings, wall)
        self._store = store
        self._queue = outlet.queue if outlet is not None else None
        self._database: DatabaseAdapter | None = None
        if outlet is not None:
            self._database = as_database(outlet.adapter, self.settings.flush_format)
        self._running = threading.Lock()
        self._delayed_jobs = StagingFlushQueue(store)
        """Jobs of flushed batches that the queue could not take; the gateway's next flush moves them to the queue."""

    @property
    def destination(self) -> DatabaseAdapter:
        """The adapter that the gateway flushes to, as a `DatabaseAdapter`.

        Raises:
            FlushError: the gateway has no adapter.
        """
        if self._database is None:
            raise FlushError(f"gateway {self.gateway_id!r} has no adapter to flush to: open it with one")
        return self._database

    @property
    def flushing(self) -> bool:
        """Whether this process is flushing."""
        return self._running.locked()

    # -- flushing ----------------------------------------------------------------------------------------------------

    def flush(self) -> FlushReport:
        """Flush the whole backlog.

        Raises:
            FlushError: there is no adapter, a flush is running, or a batch could not be written. Nothing is lost; the
                next flush starts with that batch.
            IntegrityError: the adapter stores other deltas than were written; that batch was not confirmed.
            StagingUnavailableError: staging cannot be reached.
        """
        return self._run(self._backlog_by_shard)

    def flush_table(self, table: str) -> FlushReport:
        """Flush the backlog up to the last push that contains a table, including other tables' deltas.

        A batch is a prefix of the log, so that one mark describes what was flushed. Therefore a table cannot be flushed
        alone.

        Raises:
            FlushError, IntegrityError, StagingUnavailableError: as `flush`.
        """
        return self._run(lambda: self.backlog_stats.deltas_up_to(table))

    def adopt(self, stored_deltas: Collection[DeltaIdentity]) -> FlushReport:
        """Flush the whole backlog, but confirm a batch without writing it if the adapter stores all of its deltas.

        `AdapterGateway` calls it after deltas were restored from the adapter, which then are in the log too. It waits
        for a running flush.

        Args:
            stored_deltas: deltas that were read from the adapter, so that it certainly stores them.

        Raises:
            FlushError, IntegrityError, StagingUnavailableError: as `flush`.
        """
        return self._run(self._backlog_by_shard, wait=True, stored_deltas=frozenset(stored_deltas))

    def _backlog_by_shard(self) -> dict[str, int]:
        """Return shard → number of unflushed deltas."""
        return {shard.shard: shard.deltas for shard in self.backlog_stats.backlog()}

    def _run(
        self,
        deltas_by_shard: Callable[[], dict[str, int]],
        *,
        wait: bool = False,
        stored_deltas: frozenset[DeltaIdentity] = frozenset(),
    ) -> FlushReport:
        """Flush, of each shard, the number of deltas that `deltas_by_shard` returns once no other flush is running."""
        database = self.destination
        if not self._running.acquire(blocking=wait):
            raise FlushError(f"a flush of gateway {self.gateway_id!r} is running: wait for it")
        try:
            started = time.perf_counter()
            self._move_delayed_jobs()
            flushed: list[Batch] = []
            for shard, deltas in deltas_by_shard().items():
                self._flush_shard(_BatchWriter(database, stored_deltas), shard, deltas, flushed)
            seconds = time.perf_counter() - started
        finally:
            self._running.release()
        return FlushReport(
            self.gateway_id,
            len(flushed),
            sum(batch.deltas for batch in flushed),
            sum(batch.bytes for batch in flushed),
            seconds,
        )

    def _flush_shard(self, writer: _BatchWriter, shard: str, deltas: int, flushed: list[Batch]) -> None:
        """Flush the oldest deltas of a shard, batch by batch, and append each batch to `flushed`."""
        remaining = deltas
        while remaining > 0:
            batch = self._store.plan(self.gateway_id, shard, min(remaining, self.settings.batch_deltas))
            if batch is None:
                return  # another process has flushed them
            crash_point("flush.after_plan")
            self._flush_batch(writer, batch)
            flushed.append(batch)
            remaining -= batch.deltas

    def _flush_batch(self, writer: _BatchWriter, batch: Batch) -> None:
        """Write, publish, confirm and trim a planned batch."""
        deltas = self._deltas(batch)
        if len(deltas) == batch.deltas:
            try:
                stored = writer.write(DeltaBatch(batch.batch_id, batch.gateway, deltas))
            except AdapterError as error:
                raise FlushError(
                    f"batch {batch.batch_id!r} could not be written: {error}. Nothing is lost; flush again."
                ) from error
            crash_point("flush.after_write")
            self._publish(batch, deltas)
            crash_point("flush.after_publish")
            self._store.confirm(batch.batch_id, stored.deltas, stored.id_sum)
            crash_point("flush.after_confirm")
        elif not self._is_confirmed(batch):
            raise FlushError(f"the log has {len(deltas)} of the {batch.deltas} deltas of batch {batch.batch_id!r}")
        # otherwise another process has written, confirmed and trimmed the batch
        self._store.trim(batch.gateway, batch.shard)

    def _is_confirmed(self, batch: Batch) -> bool:
        """Return whether the batch is confirmed: then another process has flushed it.

        `backlog` also returns shards without unflushed deltas.
        """
        shards = [shard for shard in self.backlog_stats.backlog() if shard.shard == batch.shard]
        return any(shard.flushed_seq >= batch.to_seq for shard in shards)

    def _deltas(self, batch: Batch) -> tuple[StoredDelta, ...]:
        """Read a batch's deltas from the log; fewer or none if the batch was trimmed meanwhile."""
        log_range = LogRange(batch.gateway, batch.shard, batch.epoch, batch.from_seq, batch.to_seq)
        return tuple(
            StoredDelta(batch.gateway, push.arrival, delta)
            for push in read_log(self._store.log_source(batch.shard), log_range)
            for delta in push.deltas
        )

    # -- jobs for destination tables -----------------------------------------------------------------------------------

    def _publish(self, batch: Batch, deltas: tuple[StoredDelta, ...]) -> None:
        """Queue a job for each table of a batch.

        Called before the batch is confirmed: if the process ends in between, the next flush writes the batch and queues
        its jobs again. For a queue that cannot be reached see `_queue_jobs`.
        """
        if self._queue is None:
            return
        rows: dict[str, dict[str, int]] = defaultdict(dict)
        for stored in deltas:
            table = rows[stored.delta.table]
            table[stored.delta.row_id] = table.get(stored.delta.row_id, 0) + 1
        schemas = self._store.gateway_config(self.gateway_id).schemas
        tables = [
            FlushedTable(schemas[table].schema, tuple(ids), sum(ids.values()))
            for table, ids in sorted(rows.items())
            if table in schemas
        ]
        self._queue_jobs(self._queue, tables, FlushContext(batch.gateway, batch.batch_id, batch.arrival_high))

    def _move_delayed_jobs(self) -> None:
        """Move jobs from staging to the queue, if it can be reached again. A job that is moved twice runs twice."""
        if self._queue is None or isinstance(self._queue, StagingFlushQueue):
            return  # the jobs in staging are those of the queue itself
        try:
            while jobs := self._delayed_jobs.pending(self.gateway_id):
                for job in jobs:
                    self._queue.publish([job.flushed], job.context)
                    self._delayed_jobs.done(job)
        except AdapterError as error:
            log.warning("jobs in staging could not be queued yet", gateway=self.gateway_id, reason=str(error))

    def _queue_jobs(self, queue: FlushQueue, tables: list[FlushedTable], context: FlushContext) -> None:
        """Queue jobs, or store them in staging if the queue cannot be reached, because deltas do not wait for it."""
        try:
            queue.publish(tables, context)
        except AdapterError as error:
            log.warning(
                "jobs for destination tables could not be queued and wait in staging",
                batch=context.batch_id,
                reason=str(error),
            )
            self._delayed_jobs.publish(tables, context)


class Materialiser:
    """Runs the jobs of one gateway, one after another."""

    def __init__(
        self,
        gateway_id: str,
        queue: FlushQueue,
        destination: Materialisable,
        on_failure: OnFailure | None = None,
        *,
        attempts: int = 5,
        first_wait_seconds: float = 0.5,
    ) -> None:
        """Create a worker for one gateway.

        Args:
            gateway_id: the gateway id.
            queue: the queue with the jobs.
            destination: the adapter with the destination tables.
            on_failure: called for each job that has failed permanently; None for nothing.
            attempts: maximum attempts per job, those of earlier processes included.
            first_wait_seconds: seconds before the second attempt; doubled for each further one.
        """
        self._gateway_id = gateway_id
        self._queue = queue
        self._destination = destination
        self._on_failure = on_failure
        self._attempts = attempts
        self._first_wait_seconds = first_wait_seconds

    def run_once(self) -> int:
        """Run all pending jobs, and return the number that succeeded.

        Raises:
            AdapterError: the queue cannot be read or written.
        """
        succeeded = 0
        while jobs := self._queue.pending(self._gateway_id):
            succeeded += sum([self._run(job) for job in jobs])
        return succeeded

    def _run(self, job: FlushJob) -> bool:
        """Run a job and return whether it succeeded.

        A job that fails permanently is set aside: it stays in the queue with its error, and is not returned as pending.
        """
        try:
            self._attempt(job)
        except Exception as error:
            self._queue.set_aside(job, f"{type(error).__name__}: {error}")
            self._report(job, error)
            return False
        self._queue.done(job)
        return True

    def _attempt(self, job: FlushJob) -> None:
        """Run a job, with retries of transient errors.

        Raises:
            Exception: the error of the last attempt.
        """
        if job.attempts >= self._attempts:  # each attempt is counted before it begins, so a killed process counts too
            raise _WorkerDiedError(f"its worker died in each of {job.attempts} attempts")
        remaining = self._attempts - job.attempts
        for attempt in stamina.retry_context(
            on=TransientError, attempts=remaining, timeout=None, wait_initial=self._first_wait_seconds, wait_max=30.0
        ):
            with attempt:
                job = self._queue.begin(job)
                self._destination.ensure_schema(job.flushed.table_schema)
                self._destination.materialise(job.context.gateway_id, job.flushed.table_schema, job.flushed.row_ids)

    def _report(self, job: FlushJob, error: Exception) -> None:
        """Log a job that has failed permanently, and call `on_failure`."""
        log.error(
            "a table was not materialised",
            gateway=job.context.gateway_id,
            table=job.flushed.table,
            batch=job.context.batch_id,
            reason=str(error),
        )
        if self._on_failure is not None:
            self._on_failure(job.flushed.table, job.flushed.delta_count, error)


class _WorkerDiedError(LakeSyncError):
    """The worker process died in each attempt at a job."""
