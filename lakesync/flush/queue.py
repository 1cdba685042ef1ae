"""Flush queues: jobs that update destination tables after a flush. `Flusher` adds jobs, `Materialiser` runs them.

A destination table has the merged rows of one synced table in the database that the gateway flushes to. A job that
fails permanently is set aside: it becomes a dead letter, which `lakesync dlq` lists, retries and drops.

`FlushQueue` is the protocol, with three implementations: in memory; in the staging store, where jobs are as durable as
the deltas and any process that uses the store can run them; and in an object store (`[flush] queue`), whose jobs any
process can run with `lakesync materialise`. There a pending job is the object `materialise-jobs/GATEWAY/JOB.json`, a
job that was set aside `materialise-failed/GATEWAY/JOB.json`. Objects that cannot be decoded are moved to
`materialise-unreadable/`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol
from urllib.parse import quote

import msgspec
import structlog

from lakesync.adapters import open_adapter
from lakesync.adapters.object_store.base import LakeAdapter
from lakesync.adapters.registry import is_object_store
from lakesync.model.errors import ConfigurationError, NotFoundError
from lakesync.model.schema import TableSchema
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.operations import FlushJobCommit
from lakesync.wire.json import encode_json

JOBS_PREFIX = "materialise-jobs"
FAILED_PREFIX = "materialise-failed"
UNREADABLE_PREFIX = "materialise-unreadable"
"""Prefixes of the objects of `ObjectFlushQueue`: pending jobs, jobs that were set aside, and other objects."""

log = structlog.get_logger("flush")


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
    """Identifies a flushed batch."""

    gateway_id: str
    batch_id: str
    arrival: int
    """The batch's last arrival (the gateway's timestamp of a push)."""


class FlushJob(msgspec.Struct, frozen=True, rename="camel"):
    """Updates the destination table of one table after one flush. Jobs are idempotent."""

    job_id: str
    context: FlushContext
    flushed: FlushedTable = msgspec.field(name="work")
    """What the flush changed in the table; `work` in the stored JSON."""
    attempts: int = 0
    """Number of attempts that were begun."""
    failure: str | None = None
    """Why it was set aside; None for a pending job."""


def jobs_for(tables: Sequence[FlushedTable], context: FlushContext) -> list[FlushJob]:
    """Return one job per table. Its id is derived from batch and table, so that adding it twice makes one job.

    Args:
        tables: the flushed tables.
        context: the flush.
    """
    return [FlushJob(f"{context.arrival:016x}-{context.batch_id}.{table.table}", context, table) for table in tables]


class FlushQueue(Protocol):
    """Jobs of any number of gateways, each stored until it has succeeded or was dropped.

    Methods of every implementation are safe to use from several threads, and raise AdapterError if the queue cannot be
    reached.
    """

    def publish(self, tables: Sequence[FlushedTable], context: FlushContext) -> None:
        """Add one job per table; existing jobs are left unchanged.

        Args:
            tables: the flushed tables.
            context: the flush.

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
        counted = msgspec.structs.replace(job, attempts=job.attempts + 1)
        with self._lock:
            self._pending[job.job_id] = counted
        return counted

    def done(self, job: FlushJob) -> None:
        """Remove a job."""
        with self._lock:
            self._pending.pop(job.job_id, None)

    def set_aside(self, job: FlushJob, failure: str) -> None:
        """Set a job aside."""
        with self._lock:
            self._pending.pop(job.job_id, None)
            self._failed[job.job_id] = msgspec.structs.replace(job, failure=failure)

    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside."""
        with self._lock:
            return _of_gateway(self._failed, gateway_id)

    def retry(self, job: FlushJob) -> None:
        """Put a job back into the queue."""
        with self._lock:
            found = self._failed.pop(job.job_id, None)
            if found is None:
                raise NotFoundError(f"no job {job.job_id!r} was set aside")
            self._pending[job.job_id] = msgspec.structs.replace(found, attempts=0, failure=None)

    def drop(self, job: FlushJob) -> None:
        """Delete a job that was set aside."""
        with self._lock:
            if self._failed.pop(job.job_id, None) is None:
                raise NotFoundError(f"no job {job.job_id!r} was set aside")


def _of_gateway(jobs: dict[str, FlushJob], gateway_id: str) -> list[FlushJob]:
    """Return a gateway's jobs, oldest flush first: a job's id begins with the arrival of its batch."""
    return [jobs[name] for name in sorted(jobs) if jobs[name].context.gateway_id == gateway_id]


_NO_LIMIT = 1 << 31
"""More than any number of jobs."""

_decode = msgspec.json.Decoder(FlushJob, strict=False).decode  # not strict: large integers are decimal strings


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
                commit.add_flush_job(job.job_id, encode_json(job), set_aside=False)

        if jobs:
            self._commit(context.gateway_id, add)

    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""
        return self._jobs(gateway_id, limit, set_aside=False)

    def begin(self, job: FlushJob) -> FlushJob:
        """Count an attempt."""
        counted = msgspec.structs.replace(job, attempts=job.attempts + 1)

        def replace(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)
            commit.add_flush_job(job.job_id, encode_json(counted), set_aside=False)

        self._commit(job.context.gateway_id, replace)
        return counted

    def done(self, job: FlushJob) -> None:
        """Remove a job."""

        def remove(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)

        self._commit(job.context.gateway_id, remove)

    def set_aside(self, job: FlushJob, failure: str) -> None:
        """Set a job aside."""
        failed = msgspec.structs.replace(job, failure=failure)

        def move(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)
            commit.take_flush_job(job.job_id, set_aside=True)  # one that was set aside by another process
            commit.add_flush_job(job.job_id, encode_json(failed), set_aside=True)

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
            reset = msgspec.structs.replace(_decode(_take_failed(commit, job)), attempts=0, failure=None)
            commit.take_flush_job(job.job_id, set_aside=False)
            commit.add_flush_job(job.job_id, encode_json(reset), set_aside=False)

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
        return [_decode(body) for body in found]

    def _commit(self, gateway_id: str, change: Callable[[FlushJobCommit], None]) -> None:
        """Change the queue in one transaction of the gateway, and wait until it is committed."""
        self._store.submit(gateway_id, change).result()


def _take_failed(commit: FlushJobCommit, job: FlushJob) -> bytes:
    """Remove a job that was set aside, and return its JSON.

    Raises:
        NotFoundError: the job was not set aside.
    """
    found = commit.take_flush_job(job.job_id, set_aside=True)
    if found is None:
        raise NotFoundError(f"no job {job.job_id!r} was set aside")
    return found


class ObjectFlushQueue:
    """`FlushQueue` in an object store."""

    def __init__(self, objects: LakeAdapter) -> None:
        """Wrap an object store.

        Args:
            objects: stores the jobs; may store other objects too.
        """
        self._objects = objects

    def publish(self, tables: Sequence[FlushedTable], context: FlushContext) -> None:
        """Add jobs as objects that are named by batch and table; existing objects are left unchanged."""
        for job in jobs_for(tables, context):
            self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(job), if_absent=True)

    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""
        return list(self._read(f"{JOBS_PREFIX}/{gateway_id}/", limit))

    def begin(self, job: FlushJob) -> FlushJob:
        """Count an attempt."""
        counted = msgspec.structs.replace(job, attempts=job.attempts + 1)
        self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(counted))
        return counted

    def done(self, job: FlushJob) -> None:
        """Remove a job."""
        self._objects.delete_object(_key(JOBS_PREFIX, job))

    def set_aside(self, job: FlushJob, failure: str) -> None:
        """Set a job aside: write it as failed, then delete the pending job. After a crash in between, it runs again."""
        failed = msgspec.structs.replace(job, failure=failure)
        self._objects.put_object(_key(FAILED_PREFIX, job), encode_json(failed))
        self._objects.delete_object(_key(JOBS_PREFIX, job))

    def gateways(self) -> list[str]:
        """Return the gateways with pending jobs. It lists one object for each gateway, not all jobs."""
        found: list[str] = []
        while page := self._objects.list_objects(f"{JOBS_PREFIX}/", after=_key_after(found), limit=1).objects:
            found.append(page[0].key.split("/")[1])
        return found

    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside."""
        return list(self._read(f"{FAILED_PREFIX}/{gateway_id}/", None))

    def retry(self, job: FlushJob) -> None:
        """Put a job that was set aside back into the queue.

        Raises:
            NotFoundError: the job was not set aside.
        """
        key = _key(FAILED_PREFIX, job)
        found = self._job(key)
        if found is None:
            raise NotFoundError(f"no job {job.job_id!r} was set aside")
        reset = msgspec.structs.replace(found, attempts=0, failure=None)
        self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(reset))
        self._objects.delete_object(key)

    def drop(self, job: FlushJob) -> None:
        """Delete a job that was set aside.

        Raises:
            NotFoundError: the job was not set aside.
        """
        key = _key(FAILED_PREFIX, job)
        if self._job(key) is None:
            raise NotFoundError(f"no job {job.job_id!r} was set aside")
        self._objects.delete_object(key)

    def _read(self, prefix: str, limit: int | None) -> Iterator[FlushJob]:
        """Yield the jobs under a prefix, oldest flush first, at most `limit`; None for all."""
        after, has_more, remaining = "", True, limit
        while has_more and remaining != 0:
            page = self._objects.list_objects(prefix, after=after, limit=min(remaining or 1000, 1000))
            for info in page.objects:
                after = info.key
                job = self._job(info.key)
                if job is None:
                    continue
                yield job
                remaining = remaining - 1 if remaining is not None else None
            has_more = page.has_more

    def _job(self, key: str) -> FlushJob | None:
        """Return the job in an object; None if another worker has removed it, or if it cannot be decoded."""
        try:
            data = self._objects.get_object(key)
        except NotFoundError:
            return None
        try:
            return _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            new_key = f"{UNREADABLE_PREFIX}/{key}"
            log.error("an object in the queue is not a job", object=key, moved_to=new_key, reason=str(error))  # noqa: TRY400
            self._objects.put_object(new_key, data)
            self._objects.delete_object(key)
            return None


def open_queue_store(uri: str, opening: ExitStack) -> LakeAdapter:
    """Open the object store of a queue.

    Args:
        uri: the URI of an object store.
        opening: an exit stack that closes the store.

    Raises:
        ConfigurationError: the URI is not an object store's.
        AdapterError: the store cannot be opened.
    """
    adapter = open_adapter(uri)
    opening.callback(adapter.close)
    if not is_object_store(adapter):
        raise ConfigurationError("flush.queue must name an object store: file:///ABSOLUTE/FOLDER or s3://BUCKET/PREFIX")
    return adapter


def _key(prefix: str, job: FlushJob) -> str:
    """Return the key of the object that stores a job."""
    return f"{prefix}/{job.context.gateway_id}/{quote(job.job_id, safe='')}.json"


def _key_after(gateways: Sequence[str]) -> str:
    """Return a key after those of every job of the last gateway: it ends with the greatest character."""
    return f"{JOBS_PREFIX}/{gateways[-1]}/\U0010ffff" if gateways else ""
