"""The routes of dead letters: an admin lists, retries or drops work after a flush that failed all its attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import WithJsonSchema
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import AdminCaller, Caller
from gateway.openapi_schemas import CALLER_ERRORS, ApiModel, Hlc, error_responses, example
from gateway.services import Services, ServicesDependency
from lakesync.flush import FlushQueue, Job
from lakesync.model.errors import AdapterError, NotFoundError

router = APIRouter(prefix="/admin/dead-letters/{gateway}")

_JOB_ID = {"type": "string", "pattern": "^[0-9a-f]{16}-[A-Za-z0-9_.-]{1,200}$"}
JobId = Annotated[
    str,
    WithJsonSchema(_JOB_ID),
    Path(description="A job id from the list", openapi_examples=example("0000000000000000-gw.main.1.1-1.todos")),
]


class DeadLetter(ApiModel):
    """One table of one flush that the destination did not take."""

    job_id: str
    table: str
    batch_id: str
    arrival_hlc: Hlc
    delta_count: int
    row_ids: tuple[str, ...]
    attempts: int
    failure: str | None


class DeadLetterList(ApiModel):
    """All dead letters of a gateway, oldest flush first."""

    dead_letters: list[DeadLetter]


class RetriedJob(ApiModel):
    """The answer to a retry: the job is in the queue again."""

    retried: bool
    job_id: str


class DroppedJob(ApiModel):
    """The answer to a drop: the job is deleted."""

    dropped: bool
    job_id: str


@router.get(
    "",
    summary="List dead letters: work for destination tables that failed all its retries",
    responses=error_responses(*CALLER_ERRORS, AdapterError),
)
async def list_dead_letters(caller: AdminCaller, services: ServicesDependency) -> DeadLetterList:
    """Return the gateway's dead letters."""
    queue = services.engine.queue
    failed = [] if queue is None else await run_in_threadpool(queue.failed, caller.gateway.gateway_id)
    return DeadLetterList(dead_letters=[_dead_letter(job) for job in failed])


@router.post(
    "/{job}",
    summary="Put a dead letter back into the queue",
    responses=error_responses(*CALLER_ERRORS, AdapterError),
)
async def retry_job(caller: AdminCaller, services: ServicesDependency, job: JobId) -> RetriedJob:
    """Put a dead letter back into the queue."""
    await _apply(services, caller, job, lambda queue, found: queue.retry(found))
    return RetriedJob(retried=True, job_id=job)


@router.delete(
    "/{job}",
    summary="Delete a dead letter",
    responses=error_responses(*CALLER_ERRORS, AdapterError),
)
async def drop_job(caller: AdminCaller, services: ServicesDependency, job: JobId) -> DroppedJob:
    """Delete a dead letter without doing its work."""
    await _apply(services, caller, job, lambda queue, found: queue.drop(found))
    return DroppedJob(dropped=True, job_id=job)


async def _apply(services: Services, caller: Caller, job_id: str, change: Callable[[FlushQueue, Job], None]) -> None:
    """Apply a change to a dead letter of the caller's gateway.

    Raises:
        NotFoundError: the gateway has no such dead letter.
    """
    queue = services.engine.queue
    failed = [] if queue is None else await run_in_threadpool(queue.failed, caller.gateway.gateway_id)
    found = next((job for job in failed if job.job_id == job_id), None)
    if queue is None or found is None:
        raise NotFoundError(f"no job {job_id!r} was set aside; GET /admin/dead-letters lists those that were")
    await run_in_threadpool(change, queue, found)


def _dead_letter(job: Job) -> DeadLetter:
    return DeadLetter(
        job_id=job.job_id,
        table=job.work.table,
        batch_id=job.context.batch_id,
        arrival_hlc=job.context.arrival,
        delta_count=job.work.delta_count,
        row_ids=tuple(job.work.row_ids),
        attempts=job.attempts,
        failure=job.failure,
    )
