"""Queues of flush jobs: updates of destination tables that follow a flush, for gateways without a pipeline.

A gateway is one app's stream of deltas (changes of rows). A flush copies them from the staging store, to which clients'
pushes are committed, to a database, batch by batch. A destination table has the current rows of one synced table in
that database. `Flusher` adds a job for each table of a flushed batch. `Materialiser` runs the jobs, and sets a job
aside if it fails for good: the job becomes a dead letter, which the gateway's routes and `lakesync dlq` list, retry and
drop.

`FlushQueue` is the queue; its subclasses say where jobs are stored. `StagingFlushQueue`, in the staging store, is the
default: its jobs are as durable as the deltas. `MemoryFlushQueue` is for programs that embed a gateway.
`ObjectFlushQueue`, in an object store, has its own module.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from lakesync.model.errors import NotFoundError
from lakesync.model.schema import TableSchema
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.operations import FlushJobCommit
from lakesync.wire.json import encode_json

_NO_LIMIT = 1 << 31
"""More than any number of jobs."""


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


decode_job = msgspec.json.Decoder(FlushJob, strict=False).decode
"""Decodes a job's stored JSON. It is not strict, because large integers are decimal strings in it."""


class JobChange(Protocol):
    """The stored jobs of one gateway during a change of its queue."""

    def add(self, job: FlushJob) -> None:
        """Store a pending job, unless one with its id is stored."""

    def put(self, job: FlushJob, *, set_aside: bool = False) -> None:
        """Store a job, in place of an existing one.

        Args:
            job: the job.
            set_aside: whether it is set aside, instead of pending.
        """

    def remove(self, job: FlushJob, *, set_aside: bool = False) -> None:
        """Delete a job, if it is stored.

        Args:
            job: the job.
            set_aside: whether to delete the one that is set aside, instead of the pending one.
        """

    def find_failed(self, job: FlushJob) -> FlushJob | None:
        """Return a job that was set aside, as it is stored; None if it was not.

        The caller then removes it, which changes nothing in staging, where this method has removed it.
        """


class FlushQueue(ABC):
    """Jobs of any number of gateways, each stored until it has succeeded or was dropped.

    Methods of every subclass are safe to use from several threads. If the queue cannot be reached, they raise
    AdapterError, or in staging StagingUnavailableError.
    """

    @abstractmethod
    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""

    @abstractmethod
    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside, oldest flush first."""

    @abstractmethod
    def _change(self, gateway_id: str, change: Callable[[JobChange], None]) -> None:
        """Change the stored jobs of a gateway, in one transaction if the store has transactions."""

    def publish(self, tables: Sequence[FlushedTable], context: FlushContext) -> None:
        """Add one job per table; existing jobs are left unchanged.

        Args:
            tables: the flushed tables.
            context: the flushed batch.

        Raises:
            AdapterError, StagingUnavailableError: some jobs may be missing; retry.
        """
        # a job's id is derived from batch and table, so that adding it twice makes one job
        prefix = f"{context.arrival:016x}-{context.batch_id}"
        jobs = [FlushJob(f"{prefix}.{table.table}", context, table) for table in tables]

        def add(stored: JobChange) -> None:
            for job in jobs:
                stored.add(job)

        if jobs:
            self._change(context.gateway_id, add)

    def begin(self, job: FlushJob) -> FlushJob:
        """Count an attempt before it is made, so that a job that kills its worker is detected. Returns the new job."""
        begun = msgspec.structs.replace(job, attempts=job.attempts + 1)
        self._change(job.context.gateway_id, lambda stored: stored.put(begun))
        return begun

    def done(self, job: FlushJob) -> None:
        """Remove a job that has succeeded."""
        self._change(job.context.gateway_id, lambda stored: stored.remove(job))

    def set_aside(self, job: FlushJob, failure: str) -> None:
        """Move a job that failed permanently out of the pending jobs, for inspection.

        In a queue without transactions, a crash during the move leaves the job in both places, and it runs again.

        Args:
            job: the job.
            failure: why it failed.
        """

        def move(stored: JobChange) -> None:
            stored.put(msgspec.structs.replace(job, failure=failure), set_aside=True)
            stored.remove(job)

        self._change(job.context.gateway_id, move)

    def retry(self, job: FlushJob) -> None:
        """Put a job that was set aside back into the queue as a new one.

        Raises:
            NotFoundError: the job was not set aside.
        """

        def requeue(stored: JobChange) -> None:
            stored.put(msgspec.structs.replace(_failed(stored, job), attempts=0, failure=None))
            stored.remove(job, set_aside=True)

        self._change(job.context.gateway_id, requeue)

    def drop(self, job: FlushJob) -> None:
        """Delete a job that was set aside.

        Raises:
            NotFoundError: the job was not set aside.
        """

        def remove(stored: JobChange) -> None:
            stored.remove(_failed(stored, job), set_aside=True)

        self._change(job.context.gateway_id, remove)


class MemoryFlushQueue(FlushQueue):
    """`FlushQueue` in memory. Its jobs are lost when the process ends; use another queue if that matters."""

    def __init__(self) -> None:
        self._stored = _JobsInMemory()
        self._lock = threading.Lock()

    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""
        return self._jobs(self._stored.pending, gateway_id)[:limit]

    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside, oldest flush first."""
        return self._jobs(self._stored.failed, gateway_id)

    def _jobs(self, jobs: dict[str, FlushJob], gateway_id: str) -> list[FlushJob]:
        """Return a gateway's jobs, oldest flush first."""
        with self._lock:
            return [jobs[name] for name in sorted(jobs) if jobs[name].context.gateway_id == gateway_id]

    def _change(self, gateway_id: str, change: Callable[[JobChange], None]) -> None:  # noqa: ARG002 job ids are unique
        with self._lock:
            change(self._stored)


class StagingFlushQueue(FlushQueue):
    """`FlushQueue` in a staging store. Every change is one transaction of the store."""

    def __init__(self, store: TransactionStore) -> None:
        """Create a queue.

        Args:
            store: the staging store of the gateways.
        """
        self._store = store

    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""
        return self._jobs(gateway_id, limit, set_aside=False)

    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside, oldest flush first."""
        return self._jobs(gateway_id, _NO_LIMIT, set_aside=True)

    def _jobs(self, gateway_id: str, limit: int, *, set_aside: bool) -> list[FlushJob]:
        """Return a gateway's pending jobs, or those that were set aside, oldest flush first."""
        found = self._store.read(gateway_id, lambda view: view.flush_jobs(set_aside=set_aside, limit=limit)).result()
        return [decode_job(body) for body in found]

    def _change(self, gateway_id: str, change: Callable[[JobChange], None]) -> None:
        self._store.submit(gateway_id, lambda commit: change(_JobsInStaging(commit))).result()


class _JobsInMemory:
    """`JobChange` of all gateways; the queue's lock guards it."""

    def __init__(self) -> None:
        self.pending: dict[str, FlushJob] = {}
        """The jobs to run, by id."""
        self.failed: dict[str, FlushJob] = {}
        """The dead letters, by id."""

    def add(self, job: FlushJob) -> None:
        self.pending.setdefault(job.job_id, job)

    def put(self, job: FlushJob, *, set_aside: bool = False) -> None:
        (self.failed if set_aside else self.pending)[job.job_id] = job

    def remove(self, job: FlushJob, *, set_aside: bool = False) -> None:
        (self.failed if set_aside else self.pending).pop(job.job_id, None)

    def find_failed(self, job: FlushJob) -> FlushJob | None:
        return self.failed.get(job.job_id)


class _JobsInStaging:
    """`JobChange` in a transaction of the staging store."""

    def __init__(self, commit: FlushJobCommit) -> None:
        self._commit = commit

    def add(self, job: FlushJob) -> None:
        self._commit.add_flush_job(job.job_id, encode_json(job), set_aside=False)

    def put(self, job: FlushJob, *, set_aside: bool = False) -> None:
        self.remove(job, set_aside=set_aside)
        self._commit.add_flush_job(job.job_id, encode_json(job), set_aside=set_aside)

    def remove(self, job: FlushJob, *, set_aside: bool = False) -> None:
        self._commit.take_flush_job(job.job_id, set_aside=set_aside)

    def find_failed(self, job: FlushJob) -> FlushJob | None:
        body = self._commit.take_flush_job(job.job_id, set_aside=True)
        return None if body is None else decode_job(body)


def _failed(stored: JobChange, job: FlushJob) -> FlushJob:
    """Return a job that was set aside; raise NotFoundError if it was not."""
    failed = stored.find_failed(job)
    if failed is None:
        raise NotFoundError(f"no job {job.job_id!r} was set aside")
    return failed
