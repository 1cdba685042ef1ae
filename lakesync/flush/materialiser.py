"""`Materialiser` updates destination tables after flushes, by running the jobs of a flush queue.

A gateway is one app's stream of changes. Without a pipeline its server flushes it: it copies deltas (changes of rows)
to a database, batch by batch. A destination table has the current rows of one synced table in that database. After a
flush the queue has a job for each table of a batch, which rewrites the rows that the batch changed. An embedded
gateway, the gateway server and `lakesync materialise` create a `Materialiser`.
"""

from __future__ import annotations

from collections.abc import Callable

import stamina
import structlog

from lakesync.adapters.base import Materialisable
from lakesync.flush.queue import FlushJob, FlushQueue
from lakesync.model.errors import LakeSyncError, TransientError

log = structlog.get_logger("flush")
OnFailure = Callable[[str, int, Exception], None]
"""Called when a job has failed permanently, with its table, the number of deltas of that table in the job's batch, and
the error."""
_MAX_WAIT_SECONDS = 30.0
"""The longest wait between two attempts."""


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
        """Run jobs until none is pending, and return the number that succeeded.

        Raises:
            AdapterError, StagingUnavailableError: the queue cannot be read or written.
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
        # Attempts are counted before they begin. A pending job that has had all of them ended its worker each time.
        if job.attempts >= self._attempts:
            raise _WorkerDiedError(f"its worker died in each of {job.attempts} attempts")
        for attempt in stamina.retry_context(
            on=TransientError,
            attempts=self._attempts - job.attempts,
            timeout=None,
            wait_initial=self._first_wait_seconds,
            wait_max=_MAX_WAIT_SECONDS,
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
