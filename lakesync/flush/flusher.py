"""The flush of a gateway without a pipeline: planned by staging, written to an adapter, confirmed, trimmed.

A batch is a whole prefix of what waits, fixed by `plan` before anything is written, and is written under its id. So
whatever dies in between, the next flush finds the same batch planned, writes the same thing again, which changes
nothing where it is there already, and confirms it by what the adapter was read to hold.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec
import structlog

from lakesync.adapters.base import Adapter, DatabaseAdapter, DeltaBatch, Held, Identity, Materialisable, StoredDelta
from lakesync.adapters.registry import as_database
from lakesync.adapters.selection import held
from lakesync.flush.queue import FlushContext, FlushQueue, TableWork
from lakesync.flush.settings import FlushSettings
from lakesync.flush.staging_queue import StagingFlushQueue
from lakesync.flush.thresholds import Thresholds
from lakesync.flush.waiting import Waiting
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, FlushError
from lakesync.staging.log_reader import Stretch, read_log
from lakesync.staging.records import Batch
from lakesync.staging.store import PipelineStore, StagingStore

log = structlog.get_logger("flush")


class FlushReport(msgspec.Struct, frozen=True, rename="camel"):
    """What one flush carried."""

    gateway_id: str
    batches: int
    deltas: int
    bytes: int
    """Stored bytes that staging gave up."""
    seconds: float


class Outlet(NamedTuple):
    """Where a gateway's deltas go."""

    adapter: Adapter
    settings: FlushSettings = FlushSettings()
    queue: FlushQueue | None = None
    """Told of each flush's tables that have a schema; None: the staging store's own, where the destination keeps
    tables."""

    @staticmethod
    def to(adapter: Adapter, settings: FlushSettings, queue: FlushQueue | None = None) -> Outlet:
        """An outlet to an adapter."""
        return Outlet(as_database(adapter, settings.flush_format), settings, queue)

    def kept_by(self, store: StagingStore) -> Outlet:
        """The outlet with a queue in a staging store, where it needs one and has none."""
        database = as_database(self.adapter, self.settings.flush_format) if self.queue is None else None
        return self._replace(queue=StagingFlushQueue(store)) if isinstance(database, Materialisable) else self


class _Sink(NamedTuple):
    """Where batches go, and what needs no writing."""

    database: DatabaseAdapter
    known: frozenset[Identity]
    """It was read to hold these."""

    def take(self, batch: DeltaBatch) -> Held:
        """Write a batch, unless all of it is held."""
        if self.known and all(stored.identity in self.known for stored in batch.deltas):
            return held(batch.deltas)
        return self.database.insert_deltas(batch)


class Flusher:
    """Flushes one gateway, one flush at a time. Safe between threads and processes."""

    def __init__(self, gateway_id: str, store: PipelineStore, wall: Callable[[], int], outlet: Outlet | None) -> None:
        """Args: wall: the server's clock in milliseconds; outlet: None where another, or nobody, flushes."""
        self.gateway_id = gateway_id
        self.waiting = Waiting(gateway_id, store)
        self.settings = outlet.settings if outlet is not None else FlushSettings()
        self.thresholds = Thresholds(self.waiting, self.settings, wall)
        self._store = store
        self._queue = outlet.queue if outlet is not None else None
        self._database: DatabaseAdapter | None = None
        if outlet is not None:
            self._database = as_database(outlet.adapter, self.settings.flush_format)
        self._running = threading.Lock()
        self._unpublished: list[tuple[list[TableWork], FlushContext]] = []

    @property
    def destination(self) -> DatabaseAdapter:
        """The adapter, as a place for deltas.

        Raises:
            FlushError: the gateway has none.
        """
        if self._database is None:
            raise FlushError(f"gateway {self.gateway_id!r} has no adapter to flush to: open it with one")
        return self._database

    @property
    def flushing(self) -> bool:
        """Whether a flush is under way in this process."""
        return self._running.locked()

    # -- how ---------------------------------------------------------------------------------------------------------

    def flush(self) -> FlushReport:
        """Carry everything that waits now.

        Raises:
            FlushError: there is no adapter, a flush is under way, or a batch could not be written; nothing is lost,
                and the next flush begins with that batch.
            IntegrityError: the adapter does not hold what was written; nothing was confirmed.
            StagingUnavailableError: staging cannot be reached.
        """
        return self._run(self._all)

    def flush_table(self, table: str) -> FlushReport:
        """Carry everything up to the last waiting push that names a table, other tables' deltas among it.

        A batch is a whole prefix of the log, so that one mark says what was flushed: a table cannot go alone.

        Raises:
            As `flush`.
        """
        return self._run(lambda: self.waiting.deltas_up_to(table))

    def adopt(self, known: Collection[Identity]) -> FlushReport:
        """Confirm what waits without writing it, as far as it is among deltas that the adapter was read to hold.

        A batch that holds any other is written, those deltas of it for a second time; waits for a flush under way.

        Raises:
            As `flush`.
        """
        return self._run(self._all, wait=True, known=frozenset(known))

    def _all(self) -> dict[str, int]:
        """How many deltas wait, by shard."""
        return {shard.shard: shard.deltas for shard in self.waiting.backlog()}

    def _run(
        self, wanted: Callable[[], dict[str, int]], *, wait: bool = False, known: frozenset[Identity] = frozenset()
    ) -> FlushReport:
        database = self.destination
        if not self._running.acquire(blocking=wait):
            raise FlushError(f"a flush of gateway {self.gateway_id!r} is under way: wait for it")
        try:
            started = time.perf_counter()
            self._publish_again()
            carried: list[Batch] = []
            for shard, deltas in wanted().items():
                self._flush_shard(_Sink(database, known), shard, deltas, carried)
            seconds = time.perf_counter() - started
        finally:
            self._running.release()
        return FlushReport(
            self.gateway_id,
            len(carried),
            sum(batch.deltas for batch in carried),
            sum(batch.bytes for batch in carried),
            seconds,
        )

    def _flush_shard(self, sink: _Sink, shard: str, deltas: int, carried: list[Batch]) -> None:
        left = deltas
        while left > 0:
            batch = self._store.plan(self.gateway_id, shard, min(left, self.settings.batch_deltas))
            if batch is None:
                return  # another process was quicker
            crash_point("flush.after_plan")
            self._carry(sink, batch)
            carried.append(batch)
            left -= batch.deltas

    def _carry(self, sink: _Sink, batch: Batch) -> None:
        deltas = self._deltas(batch)
        if len(deltas) == batch.deltas:
            try:
                found = sink.take(DeltaBatch(batch.batch_id, batch.gateway, deltas))
            except AdapterError as error:
                raise FlushError(
                    f"batch {batch.batch_id!r} could not be written: {error}; nothing is lost, flush again"
                ) from error
            crash_point("flush.after_write")
            self._publish(batch, deltas)
            crash_point("flush.after_publish")
            self._store.confirm(batch.batch_id, found.deltas, found.id_sum)
            crash_point("flush.after_confirm")
        elif not self._confirmed(batch):
            raise FlushError(f"the log holds {len(deltas)} of the {batch.deltas} deltas of batch {batch.batch_id!r}")
        # else another process has written, confirmed and trimmed it meanwhile
        self._store.trim(batch.gateway, batch.shard)

    def _confirmed(self, batch: Batch) -> bool:
        shards = [shard for shard in self.waiting.backlog() if shard.shard == batch.shard]
        return any(shard.flushed_seq >= batch.to_seq for shard in shards)

    def _deltas(self, batch: Batch) -> tuple[StoredDelta, ...]:
        stretch = Stretch(batch.gateway, batch.shard, batch.epoch, batch.from_seq, batch.to_seq)
        return tuple(
            StoredDelta(batch.gateway, push.arrival, delta)
            for push in read_log(self._store.log_source(batch.shard), stretch)
            for delta in push.deltas
        )

    # -- what follows --------------------------------------------------------------------------------------------------

    def _publish(self, batch: Batch, deltas: tuple[StoredDelta, ...]) -> None:
        """Tell the queue before the batch is confirmed, so that a crash repeats it; what fails is tried again later."""
        if self._queue is None:
            return
        rows: dict[str, dict[str, int]] = defaultdict(dict)
        for stored in deltas:
            table = rows[stored.delta.table]
            table[stored.delta.row_id] = table.get(stored.delta.row_id, 0) + 1
        schemas = self._store.gateway_config(self.gateway_id).schemas
        work = [
            TableWork(schemas[table].schema, tuple(ids), sum(ids.values()))
            for table, ids in sorted(rows.items())
            if table in schemas
        ]
        self._tell(self._queue, work, FlushContext(batch.gateway, batch.batch_id, batch.arrival_high))

    def _publish_again(self) -> None:
        waiting, self._unpublished = self._unpublished, []
        for work, context in waiting:
            if self._queue is not None:
                self._tell(self._queue, work, context)

    def _tell(self, queue: FlushQueue, work: list[TableWork], context: FlushContext) -> None:
        try:
            queue.publish(work, context)
        except AdapterError as error:
            log.warning("work for tables was not queued yet", batch=context.batch_id, reason=str(error))
            self._unpublished.append((work, context))
