"""The flush of gateways that run without the pipeline of Dagster and Spark.

A gateway is an app's stream of pushes (requests of clients with deltas, which are changes of rows). Staging, the store
that pushes are committed to, keeps the deltas in a log until a flush has written them to an adapter: a database or an
object store. Embedded gateways, and the gateway server with `[flush] to_uri`, have a `Flusher` with an `Outlet`. The
tables of a gateway may be divided among several stores, the *shards*; each has a log of its own.

A flush divides the unflushed log into batches, and for each batch it does the following:

1. `plan`: the store records the batch's bounds and id. The same batch is planned until it is confirmed, so after a
   crash the next flush continues with it.
2. Write the batch to the adapter under its id. Repeating that changes nothing. The adapter returns the checksum of what
   it has stored.
3. Queue a job for each table, which updates the adapter's *destination table*: the current rows of a synced table.
   `Materialiser` runs the jobs.
4. `confirm`: the store compares the checksum with its own.
5. `trim`: the store deletes confirmed deltas from the log.

`crash_point` names the places at which tests kill the process.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator

import msgspec
import structlog

from lakesync.adapters.arrow_access import read_pages
from lakesync.adapters.base import DatabaseAdapter, Materialisable
from lakesync.adapters.deltas import BatchChecksum, DeltaBatch, DeltaIdentity, DeltaQuery, StoredDelta, checksum_of
from lakesync.adapters.registry import Adapter, as_database
from lakesync.flush.queue import FlushContext, FlushedTable, FlushQueue, StagingFlushQueue
from lakesync.flush.thresholds import BacklogStats, FlushSettings, Thresholds
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, FlushError
from lakesync.model.secrets import without_password
from lakesync.staging.log_reader import LogRange, read_log
from lakesync.staging.records import Batch
from lakesync.staging.store import StagingStore, TransactionStore

log = structlog.get_logger("flush")

_TARGET_MARK = "flush_target"
"""Name of the mark with the URI that the gateway server last flushed to, without user and password."""
_USER = re.compile("(?<=://)[^/@]*@")
"""The user of a URI, with the `@` behind it; the password is masked before."""


class FlushReport(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one flush."""

    gateway_id: str
    batches: int
    """Number of batches that were written."""
    deltas: int
    """Number of deltas in them."""
    bytes: int
    """Bytes that were flushed from staging's log."""
    seconds: float
    """How long the flush took."""


class Outlet:
    """Where a gateway flushes to: a database, the settings, and the queue for updates of destination tables."""

    def __init__(
        self, adapter: Adapter, settings: FlushSettings | None = None, queue: FlushQueue | None = None
    ) -> None:
        """Wrap an adapter. An object store becomes a `DatabaseAdapter` that writes the flush format.

        Args:
            adapter: the adapter, a database or an object store.
            settings: when and how to flush; None for the defaults.
            queue: receives a job for each flushed table with a schema. With None no jobs are queued, unless the adapter
                has destination tables: the engine then sets a queue in its staging store (`with_queue_in`).
        """
        self.settings = settings or FlushSettings()
        self.database = as_database(adapter, self.settings.flush_format)
        self.queue = queue

    def with_queue_in(self, store: TransactionStore) -> Outlet:
        """Return the outlet with a queue in the staging store, if it has none and needs one for destination tables."""
        if self.queue is None and isinstance(self.database, Materialisable):
            return Outlet(self.database, self.settings, StagingFlushQueue(store))
        return self


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
        """Statistics of the deltas that were not flushed yet."""
        self.settings = outlet.settings if outlet is not None else FlushSettings()
        self.thresholds = Thresholds(self.backlog_stats, self.settings, wall)
        """Decides whether a flush is due; the engine asks it, and then calls `flush`."""
        self._store = store
        self._queue = outlet.queue if outlet is not None else None
        self._database = outlet.database if outlet is not None else None
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

    def flush(self, *, wait: bool = False) -> FlushReport:
        """Flush the whole backlog.

        Args:
            wait: whether to wait for a running flush; otherwise it is an error.

        Raises:
            FlushError: there is no adapter, a flush is running, or the adapter could not be written or read. Nothing is
                lost; the next flush starts with that batch.
            IntegrityError: the adapter stores other deltas than were written; that batch was not confirmed.
            StagingUnavailableError: staging cannot be reached.
        """
        return self._run(self._backlog_by_shard, wait=wait)

    def flush_table(self, table: str) -> FlushReport:
        """Flush the backlog up to the last push that contains a table, including other tables' deltas.

        A batch is a prefix of the log, so that one sequence says up to where the log was flushed. Therefore a table
        cannot be flushed alone.

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
        """Flush once.

        Args:
            deltas_by_shard: returns shard → how many of its oldest deltas to flush; called when no flush is running.
            wait: whether to wait for a running flush; otherwise it is an error.
            stored_deltas: deltas that the adapter is known to store.
        """
        database = self.destination
        if not self._running.acquire(blocking=wait):
            raise FlushError(f"a flush of gateway {self.gateway_id!r} is running: wait for it")
        try:
            started = time.perf_counter()
            self._move_delayed_jobs()
            flushed = [
                batch
                for shard, deltas in deltas_by_shard().items()
                for batch in self._flush_shard(database, shard, deltas, stored_deltas)
            ]
            seconds = time.perf_counter() - started
        finally:
            self._running.release()
        return FlushReport(
            gateway_id=self.gateway_id,
            batches=len(flushed),
            deltas=sum(batch.deltas for batch in flushed),
            bytes=sum(batch.bytes for batch in flushed),
            seconds=seconds,
        )

    def _flush_shard(
        self, database: DatabaseAdapter, shard: str, deltas: int, stored_deltas: frozenset[DeltaIdentity]
    ) -> Iterator[Batch]:
        """Flush the oldest deltas of a shard, and yield each flushed batch.

        Args:
            database: the adapter to write to.
            shard: the shard's name.
            deltas: how many deltas to flush; the last batch may have more, because a push is not divided.
            stored_deltas: deltas that the adapter is known to store.
        """
        remaining = deltas
        while remaining > 0:
            batch = self._store.plan(self.gateway_id, shard, min(remaining, self.settings.batch_deltas))
            if batch is None:
                return  # another process has flushed them
            crash_point("flush.after_plan")
            self._flush_batch(database, batch, stored_deltas)
            yield batch
            remaining -= batch.deltas

    def _flush_batch(self, database: DatabaseAdapter, batch: Batch, stored_deltas: frozenset[DeltaIdentity]) -> None:
        """Write and confirm a planned batch, queue its jobs, and trim the log."""
        deltas = self._deltas(batch)
        if len(deltas) == batch.deltas:
            try:
                stored = _write(database, DeltaBatch(batch.batch_id, batch.gateway, deltas), stored_deltas)
            except AdapterError as error:
                raise FlushError(
                    f"batch {batch.batch_id!r} could not be written: {error}. Nothing is lost; flush again."
                ) from error
            crash_point("flush.after_write")
            self._queue_jobs(batch, deltas)
            crash_point("flush.after_publish")
            self._store.confirm(batch.batch_id, stored.deltas, stored.id_sum)
            crash_point("flush.after_confirm")
        elif not self._is_confirmed(batch):
            raise FlushError(f"the log has {len(deltas)} of the {batch.deltas} deltas of batch {batch.batch_id!r}")
        # else another process, which had planned the same batch, has flushed it and trimmed the log
        self._store.trim(batch.gateway, batch.shard)

    def _is_confirmed(self, batch: Batch) -> bool:
        """Return whether the batch is confirmed: its pushes are among the flushed ones."""
        backlog = self.backlog_stats.backlog()
        return any(each.shard == batch.shard and each.flushed_seq >= batch.to_seq for each in backlog)

    def _deltas(self, batch: Batch) -> tuple[StoredDelta, ...]:
        """Read a batch's deltas from the log; fewer or none if the batch was trimmed meanwhile."""
        log_range = LogRange(batch.gateway, batch.shard, batch.epoch, batch.from_seq, batch.to_seq)
        return tuple(
            StoredDelta(batch.gateway, push.arrival, delta)
            for push in read_log(self._store.log_source(batch.shard), log_range)
            for delta in push.deltas
        )

    # -- jobs for destination tables -----------------------------------------------------------------------------------

    def _queue_jobs(self, batch: Batch, deltas: tuple[StoredDelta, ...]) -> None:
        """Queue a job for each table of a batch that has a schema.

        The first job of a table that was flushed without a schema before, or to another adapter, has all of its rows. A
        mark in the store records such tables. Called before the batch is confirmed: if the process ends in between, the
        next flush writes the batch and queues its jobs again. If the queue cannot be reached, the jobs are stored in
        staging, so that the flush can go on.
        """
        if self._queue is None:
            return
        rows: dict[str, Counter[str]] = defaultdict(Counter)  # table → row id → number of deltas
        for stored in deltas:
            rows[stored.delta.table][stored.delta.row_id] += 1
        schemas = self._store.gateway_config(self.gateway_id).schemas
        marks = {table: _unfilled_mark(self.gateway_id, table) for table in rows}
        stored_marks = self._store.marks()
        unfilled = {table for table, mark in marks.items() if stored_marks.get(mark) == "true"}
        for table in rows.keys() - schemas.keys() - unfilled:
            self._store.put_mark(marks[table], "true")
        tables = []
        for table in sorted(rows.keys() & schemas.keys()):
            row_ids = rows[table].keys() | (self._stored_rows(table) if table in unfilled else ())
            tables.append(FlushedTable(schemas[table].schema, tuple(row_ids), rows[table].total()))
        context = FlushContext(batch.gateway, batch.batch_id, batch.arrival_high)
        try:
            self._queue.publish(tables, context)
        except AdapterError as error:
            log.warning(
                "jobs for destination tables could not be queued and wait in staging",
                batch=batch.batch_id,
                reason=str(error),
            )
            self._delayed_jobs.publish(tables, context)
        for each in tables:
            if each.table in unfilled:
                self._store.put_mark(marks[each.table], "false")

    def _stored_rows(self, table: str) -> set[str]:
        """Return the ids of a table's rows of which the adapter stores deltas.

        Raises:
            FlushError: the adapter cannot be read.
        """
        query = DeltaQuery(gateway=self.gateway_id, tables=(table,))
        try:
            return {
                row_id
                for page in read_pages(self.destination, query)
                for row_id in page.deltas.column("row_id").to_pylist()
            }
        except AdapterError as error:
            raise FlushError(
                f"the rows of table {table!r} that were flushed before could not be read: {error}. Nothing is lost; "
                "flush again."
            ) from error

    def _move_delayed_jobs(self) -> None:
        """Move jobs from staging to the queue, if it can be reached again. After a crash, one job may run twice."""
        if self._queue is None or isinstance(self._queue, StagingFlushQueue):
            return  # no queue, or the one in staging
        try:
            while jobs := self._delayed_jobs.pending(self.gateway_id):
                for job in jobs:
                    self._queue.publish([job.flushed], job.context)
                    self._delayed_jobs.done(job)
        except AdapterError as error:
            log.warning("jobs in staging could not be queued yet", gateway=self.gateway_id, reason=str(error))


def record_target(store: StagingStore, uri: str) -> str | None:
    """Record the adapter that a store's gateways are flushed to. After a change, mark their tables as unfilled.

    The next flush of such a table then writes all rows of which the new adapter stores deltas. Another user or password
    is no change.

    Args:
        store: the staging store.
        uri: the adapter's URI.

    Returns:
        The URI of the previous adapter, without user and password, if it has changed; otherwise None.
    """
    target = _USER.sub("", without_password(uri))
    text = store.marks().get(_TARGET_MARK)
    previous: str | None = msgspec.json.decode(text, type=str) if text is not None else None
    if previous == target:
        return None
    if previous is not None:
        for gateway in store.gateways():
            for table in store.gateway_config(gateway).schemas:
                store.put_mark(_unfilled_mark(gateway, table), "true")
    store.put_mark(_TARGET_MARK, msgspec.json.encode(target).decode())
    return previous


def _unfilled_mark(gateway: str, table: str) -> str:
    """Return the name of the mark that is `true` while a destination table may lack rows that were flushed before."""
    return f"flushed_without_schema/{gateway}/{table}"


def _write(database: DatabaseAdapter, batch: DeltaBatch, stored_deltas: frozenset[DeltaIdentity]) -> BatchChecksum:
    """Write a batch, unless all of its deltas are known to be stored; return the checksum of what is stored."""
    if stored_deltas and all(delta.identity in stored_deltas for delta in batch.deltas):
        return checksum_of(batch.deltas)
    return database.insert_deltas(batch)
