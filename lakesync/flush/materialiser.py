"""`Materialiser`: updates destination tables after flushes, one table of one flush per job.

A gateway that runs without the pipeline flushes deltas to an adapter and adds a job to a queue for each table. The job
rewrites the destination table's rows (current values, beside the deltas) that the flush has changed. An embedded
gateway, the gateway server and `lakesync materialise` run the jobs.
"""

from __future__ import annotations

from collections.abc import Callable

import stamina
import structlog

from lakesync.adapters.base import Materialisable
from lakesync.flush.queue import FlushQueue, Job
from lakesync.model.errors import LakeSyncError, TransientError

log = structlog.get_logger("flush")

OnFailure = Callable[[str, int, Exception], None]
"""Called when a job has failed permanently, with the table, the number of deltas of the flush, and the error."""


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

    def _run(self, job: Job) -> bool:
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

    def _attempt(self, job: Job) -> None:
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
                self._destination.ensure_schema(job.work.table_schema)
                self._destination.materialise(job.context.gateway_id, job.work.table_schema, job.work.row_ids)

    def _report(self, job: Job, error: Exception) -> None:
        """Log a job that has failed permanently, and call `on_failure`."""
        log.error(
            "a table was not materialised",
            gateway=job.context.gateway_id,
            table=job.work.table,
            batch=job.context.batch_id,
            reason=str(error),
        )
        if self._on_failure is not None:
            self._on_failure(job.work.table, job.work.delta_count, error)


class _WorkerDiedError(LakeSyncError):
    """The worker process died in each attempt at a job."""
