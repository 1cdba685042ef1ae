"""Work that follows a flush: rows of a destination's tables to be brought in line."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import msgspec

from lakesync.model.errors import NotFoundError
from lakesync.model.schema import TableSchema


class TableWork(msgspec.Struct, frozen=True, rename="camel"):
    """What a flush changed of one table."""

    table_schema: TableSchema
    """As it was in force when the batch was flushed."""
    row_ids: tuple[str, ...]
    delta_count: int

    @property
    def table(self) -> str:
        """The table's name."""
        return self.table_schema.table


class FlushContext(msgspec.Struct, frozen=True, rename="camel"):
    """Which flush it was."""

    gateway_id: str
    batch_id: str
    arrival: int
    """The batch's last."""


class Job(msgspec.Struct, frozen=True, rename="camel"):
    """One table of one flush: to be repeated until it is done, since doing it twice does no harm."""

    job_id: str
    context: FlushContext
    work: TableWork
    attempts: int = 0
    """How often it was begun."""
    failure: str | None = None
    """Why it was set aside."""


def jobs_of(work: Sequence[TableWork], context: FlushContext) -> list[Job]:
    """One job a table, named by the batch, so that work published twice is one."""
    return [Job(f"{context.arrival:016x}-{context.batch_id}.{table.table}", context, table) for table in work]


class FlushQueue(Protocol):
    """Jobs of any number of gateways. A job stays in the queue until it is done or set aside. Safe between threads."""

    def publish(self, work: Sequence[TableWork], context: FlushContext) -> None:
        """Add a flush's work, one job a table; what is there already stays as it is.

        Raises:
            AdapterError: not all of it may be there; a repeat is safe.
        """

    def pending(self, gateway_id: str, limit: int = 100) -> list[Job]:
        """Jobs of a gateway, oldest flush first."""

    def begin(self, job: Job) -> Job:
        """Count an attempt before it is made, so that a job that kills its worker is known by its count."""

    def done(self, job: Job) -> None:
        """Take a job out."""

    def set_aside(self, job: Job, failure: str) -> None:
        """Take a job out of the way, to be looked at."""

    def failed(self, gateway_id: str) -> list[Job]:
        """Jobs that were set aside, oldest flush first, with why."""

    def retry(self, job: Job) -> None:
        """Put a job that was set aside back, as if it were new.

        Raises:
            NotFoundError: it is not among those.
        """

    def drop(self, job: Job) -> None:
        """Forget a job that was set aside.

        Raises:
            NotFoundError: it is not among those.
        """


class MemoryFlushQueue:
    """`FlushQueue` of one process; what is in it ends with the process, so publish to objects where that matters."""

    def __init__(self) -> None:
        self._pending: dict[str, Job] = {}
        self._failed: dict[str, Job] = {}
        self._lock = threading.Lock()

    def publish(self, work: Sequence[TableWork], context: FlushContext) -> None:
        """Add a flush's work."""
        with self._lock:
            for job in jobs_of(work, context):
                self._pending.setdefault(job.job_id, job)

    def pending(self, gateway_id: str, limit: int = 100) -> list[Job]:
        """Jobs of a gateway, oldest flush first."""
        with self._lock:
            return _of(self._pending, gateway_id)[:limit]

    def begin(self, job: Job) -> Job:
        """Count an attempt."""
        begun = msgspec.structs.replace(job, attempts=job.attempts + 1)
        with self._lock:
            self._pending[job.job_id] = begun
        return begun

    def done(self, job: Job) -> None:
        """Take a job out."""
        with self._lock:
            self._pending.pop(job.job_id, None)

    def set_aside(self, job: Job, failure: str) -> None:
        """Take a job out of the way."""
        with self._lock:
            self._pending.pop(job.job_id, None)
            self._failed[job.job_id] = msgspec.structs.replace(job, failure=failure)

    def failed(self, gateway_id: str) -> list[Job]:
        """Jobs that were set aside."""
        with self._lock:
            return _of(self._failed, gateway_id)

    def retry(self, job: Job) -> None:
        """Put a job back."""
        with self._lock:
            found = self._failed.pop(job.job_id, None)
            if found is None:
                raise NotFoundError(f"no job {job.job_id!r} was set aside")
            self._pending[job.job_id] = msgspec.structs.replace(found, attempts=0, failure=None)

    def drop(self, job: Job) -> None:
        """Forget a job."""
        with self._lock:
            if self._failed.pop(job.job_id, None) is None:
                raise NotFoundError(f"no job {job.job_id!r} was set aside")


def _of(jobs: dict[str, Job], gateway_id: str) -> list[Job]:
    return [jobs[name] for name in sorted(jobs) if jobs[name].context.gateway_id == gateway_id]
