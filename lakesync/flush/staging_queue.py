"""`StagingFlushQueue`: a flush queue in the staging store.

Its jobs are as durable as the deltas, and any process that uses the store can run them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lakesync.flush.queue import FlushContext, Job, TableWork, jobs_of
from lakesync.model.errors import NotFoundError
from lakesync.staging.store import TransactionStore
from lakesync.staging.store.operations import FlushJobCommit
from lakesync.wire.json import encode_json

_NO_LIMIT = 1 << 31

_decode = msgspec.json.Decoder(Job, strict=False).decode


class StagingFlushQueue:
    """`FlushQueue` in a staging store."""

    def __init__(self, store: TransactionStore) -> None:
        """Create a queue.

        Args:
            store: the staging store of the gateways.
        """
        self._store = store

    def publish(self, work: Sequence[TableWork], context: FlushContext) -> None:
        """Add one job per table."""
        jobs = jobs_of(work, context)

        def add(commit: FlushJobCommit) -> None:
            for job in jobs:
                commit.add_flush_job(job.job_id, encode_json(job), set_aside=False)

        if jobs:
            self._commit(context.gateway_id, add)

    def pending(self, gateway_id: str, limit: int = 100) -> list[Job]:
        """Return a gateway's pending jobs, oldest flush first."""
        return self._jobs(gateway_id, limit, set_aside=False)

    def begin(self, job: Job) -> Job:
        """Count an attempt."""
        counted = msgspec.structs.replace(job, attempts=job.attempts + 1)

        def replace(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)
            commit.add_flush_job(job.job_id, encode_json(counted), set_aside=False)

        self._commit(job.context.gateway_id, replace)
        return counted

    def done(self, job: Job) -> None:
        """Remove a job."""

        def remove(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)

        self._commit(job.context.gateway_id, remove)

    def set_aside(self, job: Job, failure: str) -> None:
        """Set a job aside."""
        failed = msgspec.structs.replace(job, failure=failure)

        def move(commit: FlushJobCommit) -> None:
            commit.take_flush_job(job.job_id, set_aside=False)
            commit.take_flush_job(job.job_id, set_aside=True)
            commit.add_flush_job(job.job_id, encode_json(failed), set_aside=True)

        self._commit(job.context.gateway_id, move)

    def failed(self, gateway_id: str) -> list[Job]:
        """Return the jobs that were set aside."""
        return self._jobs(gateway_id, _NO_LIMIT, set_aside=True)

    def retry(self, job: Job) -> None:
        """Put a job back into the queue.

        Raises:
            NotFoundError: the job was not set aside.
        """

        def requeue(commit: FlushJobCommit) -> None:
            reset = msgspec.structs.replace(_decode(_take_failed(commit, job)), attempts=0, failure=None)
            commit.take_flush_job(job.job_id, set_aside=False)
            commit.add_flush_job(job.job_id, encode_json(reset), set_aside=False)

        self._commit(job.context.gateway_id, requeue)

    def drop(self, job: Job) -> None:
        """Delete a job that was set aside.

        Raises:
            NotFoundError: the job was not set aside.
        """

        def remove(commit: FlushJobCommit) -> None:
            _take_failed(commit, job)

        self._commit(job.context.gateway_id, remove)

    def _jobs(self, gateway_id: str, limit: int, *, set_aside: bool) -> list[Job]:
        found = self._store.read(gateway_id, lambda view: view.flush_jobs(set_aside=set_aside, limit=limit)).result()
        return [_decode(body) for body in found]

    def _commit(self, gateway_id: str, work: Callable[[FlushJobCommit], None]) -> None:
        self._store.submit(gateway_id, work).result()


def _take_failed(commit: FlushJobCommit, job: Job) -> bytes:
    """Remove a job that was set aside, and return its JSON.

    Raises:
        NotFoundError: the job was not set aside.
    """
    found = commit.take_flush_job(job.job_id, set_aside=True)
    if found is None:
        raise NotFoundError(f"no job {job.job_id!r} was set aside")
    return found
