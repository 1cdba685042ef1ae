"""Queues of flush jobs: updates of destination tables that follow a flush, for gateways without a pipeline.

A flush copies deltas (changes of rows) from a gateway's staging store, to which clients' pushes are committed, to a
database, batch by batch. A destination table has the current rows of one synced table in that database. `Flusher` adds
a job for each table of a flushed batch. `Materialiser` runs the jobs, and sets a job aside if it fails for good: the
job becomes a dead letter, which the gateway's routes and `lakesync dlq` list, retry and drop.

`FlushQueue` is the protocol. `StagingFlushQueue`, in the staging store, is the default: its jobs are as durable as the
deltas. `MemoryFlushQueue` is for programs that embed a gateway. `ObjectFlushQueue`, in an object store, has its own
module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import msgspec

from lakesync.model.errors import NotFoundError
from lakesync.model.schema import TableSchema
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.operations import FlushJobCommit
from lakesync.wire.json import encode_json


class FlushedTable(msgspec.Struct, frozen=True, rename="camel"):
    """What a flush changed in one table."""

    table_schema: TableSchema
    """The schema when the batch was flushed."""
    row_ids: tuple[str, ...]
    """The rows with flushed deltas."""
    delta_count: int
    """Number of flushed deltas."""

    @property
    def table(self) -> str:
        """The table's name."""
        return self.table_schema.table


class FlushContext(msgspec.Struct, frozen=True, rename="camel"):
    """Identifies a flushed batch: deltas that one flush wrote together."""

    gateway_id: str
    batch_id: str
    arrival: int
    """The batch's last arrival (the gateway's timestamp of a push)."""


class FlushJob(msgspec.Struct, frozen=True, rename="camel"):
    """Updates the destination table of one table after one flush. Running it again changes nothing."""

    job_id: str
    """Begins with the batch's arrival, so that jobs in the order of their ids are in the order of the flushes."""
    context: FlushContext
    flushed: FlushedTable = msgspec.field(name="work")
    """What the flush changed in the table; `work` in the stored JSON."""
    attempts: int = 0
    """Number of attempts that were begun."""
    failure: str | None = None
    """Why it was set aside; None for a pending job."""

    def with_attempt(self) -> Self:
        """Return the job with one more attempt."""
        return msgspec.structs.replace(self, attempts=self.attempts + 1)

    def with_failure(self, failure: str) -> Self:
        """Return the job as it is set aside."""
        return msgspec.structs.replace(self, failure=failure)

    def as_new(self) -> Self:
        """Return the job without attempts and failure."""
        return msgspec.structs.replace(self, attempts=0, failure=None)


decode_job = msgspec.json.Decoder(FlushJob, strict=False).decode
"""Decodes a job's stored JSON. It is not strict, because large integers are decimal strings in it."""


def jobs_for(tables: Sequence[FlushedTable], context: FlushContext) -> list[FlushJob]:
    """Return one job per table. Its id is derived from batch and table, so that adding it twice makes one job.

    Args:
        tables: the flushed tables.
        context: the flushed batch.
    """
    return [FlushJob(f"{context.arrival:016x}-{context.batch_id}.{table.table}", context, table) for table in tables]


def not_set_aside(job: FlushJob) -> NotFoundError:
    """Return the error about a job that is retried or dropped, but was not set aside."""
    return NotFoundError(f"no job {job.job_id!r} was set aside")


class FlushQueue(Protocol):
    """Jobs of any number of gateways, each stored until it has succeeded or was dropped.

    Methods of every implementation are safe to use from several threads, and raise AdapterError if the queue cannot be
    reached.
    """

    def publish(self, tables: Sequence[FlushedTable], context: FlushContext) -> None:
        """Add one job per table; existing jobs are left unchanged.

        Args:
            tables: the flushed tables.
            context: the flushed batch.

        Raises:
            AdapterError: some jobs may be missing; retry.
        """

    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""

    def begin(self, job: FlushJob) -> FlushJob:
        """Count an attempt before it is made, so that a job that kills its worker is detected. Returns the new job."""

    def done(self, job: FlushJob) -> None:
        """Remove a job that has succeeded."""

    def set_aside(self, job: FlushJob, failure: str) -> None:
        """Move a job that failed permanently out of the pending jobs, for inspection.

        Args:
            job: the job.
            failure: why it failed.
        """

    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside, oldest flush first."""

    def retry(self, job: FlushJob) -> None:
        """Put a job that was set aside back into the queue as a new one.

        Raises:
            NotFoundError: the job was not set aside.
        """

    def drop(self, job: FlushJob) -> None:
        """Delete a job that was set aside.

        Raises:
            NotFoundError: the job was not set aside.
        """


class MemoryFlushQueue:
    """`FlushQueue` in memory. Its jobs are lost when the process ends; use another queue if that matters."""

    def __init__(self) -> None:
        self._pending: dict[str, FlushJob] = {}
        self._failed: dict[str, FlushJob] = {}
        self._lock = threading.Lock()

    def publish(self, tables: Sequence[FlushedTable], context: FlushContext) -> None:
        """Add one job per table."""
        with self._lock:
            for job in jobs_for(tables, context):
                self._pending.setdefault(job.job_id, job)

    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""
        with self._lock:
            return _of_gateway(self._pending, gateway_id)[:limit]

    def begin(self, job: FlushJob) -> FlushJob:
        """Count an attempt."""
        begun = job.with_attempt()
        with self._lock:
            self._pending[job.job_id] = begun
        return begun

    def done(self, job: FlushJob) -> None:
        """Remove a job."""
        with self._lock:
            self._pending.pop(job.job_id, None)

    def set_aside(self, job: FlushJob, failure: str) -> None:
        """Set a job aside."""
        with self._lock:
            self._pending.pop(job.job_id, None)
            self._failed[job.job_id] = job.with_failure(failure)

    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside."""
        with self._lock:
            return _of_gateway(self._failed, gateway_id)

    def retry(self, job: FlushJob) -> None:
        """Put a job back into the queue."""
        with self._lock:
            self._pending[job.job_id] = self._take_failed(job).as_new()

    def drop(self, job: FlushJob) -> None:
        """Delete a job that was set aside."""
        with self._lock:
            self._take_failed(job)

    def _take_failed(self, job: FlushJob) -> FlushJob:
        """Remove and return a job that was set aside; raise NotFoundError if it was not. The caller has the lock."""
        failed = self._failed.pop(job.job_id, None)
        if failed is None:
            raise not_set_aside(job)
        return failed


def _of_gateway(jobs: dict[str, FlushJob], gateway_id: str) -> list[FlushJob]:
    """Return a gateway's jobs, oldest flush first."""
    return [jobs[name] for name in sorted(jobs) if jobs[name].context.gateway_id == gateway_id]


_NO_LIMIT = 1 << 31
"""More than any number of jobs."""


class StagingFlushQueue:
    """`FlushQueue` in a staging store. Every change is one transaction of the store."""

    def __init__(self, store: TransactionStore) -> None:
        """Create a queue.

        Args:
            store: the staging store of the gateways.
        """
        self._store = store

    def publish(self, tables: Sequence[FlushedTable], context: FlushContext) -> None:
        """Add one job per table."""
        jobs = jobs_for(tables, context)

        def add(commit: FlushJobCommit) -> None:
            for job in jobs:
                _add(commit, job)

        if jobs:
            self._commit(context.gateway_id, add)

    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""
        return self._jobs(gateway_id, limit, set_aside=False)

    def begin(self, job: FlushJob) -> FlushJob:
        """Count an attempt."""
        begun = job.with_attempt()

        def replace(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)
            _add(commit, begun)

        self._commit(job.context.gateway_id, replace)
        return begun

    def done(self, job: FlushJob) -> None:
        """Remove a job."""

        def remove(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)

        self._commit(job.context.gateway_id, remove)

    def set_aside(self, job: FlushJob, failure: str) -> None:
        """Set a job aside."""

        def move(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)
            commit.take_flush_job(job.job_id, set_aside=True)  # if another process has set it aside too
            _add(commit, job.with_failure(failure), set_aside=True)

        self._commit(job.context.gateway_id, move)

    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside."""
        return self._jobs(gateway_id, _NO_LIMIT, set_aside=True)

    def retry(self, job: FlushJob) -> None:
        """Put a job back into the queue.

        Raises:
            NotFoundError: the job was not set aside.
        """

        def requeue(commit: FlushJobCommit) -> None:
            failed = _take_failed(commit, job)
            commit.take_flush_job(job.job_id, set_aside=False)
            _add(commit, failed.as_new())

        self._commit(job.context.gateway_id, requeue)

    def drop(self, job: FlushJob) -> None:
        """Delete a job that was set aside.

        Raises:
            NotFoundError: the job was not set aside.
        """

        def remove(commit: FlushJobCommit) -> None:
            _take_failed(commit, job)

        self._commit(job.context.gateway_id, remove)

    def _jobs(self, gateway_id: str, limit: int, *, set_aside: bool) -> list[FlushJob]:
        """Return a gateway's pending jobs, or those that were set aside, oldest flush first."""
        found = self._store.read(gateway_id, lambda view: view.flush_jobs(set_aside=set_aside, limit=limit)).result()
        return [decode_job(body) for body in found]

    def _commit(self, gateway_id: str, change: Callable[[FlushJobCommit], None]) -> None:
        """Change the queue in one transaction of the gateway, and wait until it is committed."""
        self._store.submit(gateway_id, change).result()


def _add(commit: FlushJobCommit, job: FlushJob, *, set_aside: bool = False) -> None:
    """Store a job in a transaction, unless one with its id exists."""
    commit.add_flush_job(job.job_id, encode_json(job), set_aside=set_aside)


def _take_failed(commit: FlushJobCommit, job: FlushJob) -> FlushJob:
    """Remove and return a job that was set aside.

    Raises:
        NotFoundError: the job was not set aside.
    """
    body = commit.take_flush_job(job.job_id, set_aside=True)
    if body is None:
        raise not_set_aside(job)
    return decode_job(body)
