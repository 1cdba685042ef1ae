"""The routes of flushes, for admins: request a flush, and list, retry or drop dead letters.

A gateway is one app's stream of changes. Staging, the gateways' database, has a log of the deltas (changes of rows)
that clients pushed. With a pipeline, its flush moves them to the lake's table `deltas`, and then merges them into state
tables with the current rows. Without one, the server itself flushes them to a target, such as a database. There a job
after the flush updates each destination table, which has the current rows; a *dead letter* is a job that failed all its
attempts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BeforeValidator, Field, WithJsonSchema
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import AdminCaller, Caller, Services, ServicesDependency
from gateway.openapi_schemas import CALLER_ERRORS, ApiModel, Hlc, error_responses, example
from lakesync.analysis.marks import report_in
from lakesync.flush import FlushJob, FlushQueue
from lakesync.model.errors import AdapterError, NotFoundError
from lakesync.staging.records import Backlog

router = APIRouter()

POLL_SECONDS = 0.25
"""Seconds between two reads of the backlog (the size of the unflushed log) while a request waits for its flush."""
_MARGIN_SECONDS = 2.0
"""Seconds before the request's timeout at which the wait ends."""
_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][-+]?[0-9]{1,3})?")
"""A number in JSON's syntax; `float` accepts more."""


class FlushRequested(ApiModel):
    """The response to a request for a flush."""

    requested: bool
    flushed: bool | None = None
    """Whether everything that was unflushed at the request is in the lake's `deltas`; absent if it was not awaited."""
    merged: bool | None = None
    """Whether the same deltas are also in the state tables and the checkpoint, from which new clients start; absent
    without a pipeline."""
    snapshot_id: str | None = None
    """Iceberg snapshot of `deltas` in which they were read back; absent without a pipeline."""


def _check_number(text: Any) -> Any:
    """Reject text such as `inf`, which pydantic would accept as a number."""
    if isinstance(text, str) and not _NUMBER.fullmatch(text):
        raise ValueError("it must be a number, give seconds from 0 to 3600")
    return text


@router.post(
    "/admin/flush/{gateway}",
    summary="Request a flush of everything unflushed",
    status_code=202,
    response_model_exclude_none=True,
    responses=error_responses(*CALLER_ERRORS),
)
async def flush(
    caller: AdminCaller,
    services: ServicesDependency,
    wait: Annotated[
        float,
        Field(ge=0, le=3600),
        BeforeValidator(_check_number),
        Query(description="Seconds to wait until everything is in the lake; the request timeout limits it"),
    ] = 0.0,
) -> FlushRequested:
    """Request a flush of everything unflushed, and wait for it if `wait` is given."""
    seconds = min(wait, max(0.0, services.settings.limits.request_timeout_seconds - _MARGIN_SECONDS))
    at_request = {shard.shard: shard for shard in await run_in_threadpool(caller.gateway.backlog)}
    await run_in_threadpool(caller.gateway.request_flush)
    if not seconds:
        return FlushRequested(requested=True)
    marks = await run_in_threadpool(services.engine.store.marks)  # with the pipeline's latest report, if there is one
    return await _wait_for_flush(caller, at_request, seconds, by_pipeline=report_in(marks) is not None)


_JOB_ID = {"type": "string", "pattern": "^[0-9a-f]{16}-[A-Za-z0-9_.-]{1,200}$"}
JobId = Annotated[
    str,
    WithJsonSchema(_JOB_ID),
    Path(description="A job id from the list", openapi_examples=example("0000000000000000-gw.main.1.1-1.todos")),
]


class DeadLetter(ApiModel):
    """A job that updates one destination table after one flush, and that failed all its attempts."""

    job_id: str
    table: str
    batch_id: str
    """The id of the flush."""
    arrival_hlc: Hlc
    """The newest arrival (the gateway's timestamp of a push) in the flush."""
    delta_count: int
    row_ids: tuple[str, ...]
    """The rows to update."""
    attempts: int
    failure: str | None
    """The error of the last attempt."""


class DeadLetterList(ApiModel):
    """All dead letters of a gateway, oldest flush first."""

    dead_letters: list[DeadLetter]


class RetriedJob(ApiModel):
    """The response to a retry: the job is in the queue again."""

    retried: bool
    job_id: str


class DroppedJob(ApiModel):
    """The response to a drop: the job is deleted."""

    dropped: bool
    job_id: str


@router.get(
    "/admin/dead-letters/{gateway}",
    summary="List dead letters: work for destination tables that failed all its retries",
    responses=error_responses(*CALLER_ERRORS, AdapterError),
)
async def list_dead_letters(caller: AdminCaller, services: ServicesDependency) -> DeadLetterList:
    """Return the gateway's dead letters."""
    queue = services.engine.queue
    failed = [] if queue is None else await run_in_threadpool(queue.failed, caller.gateway.gateway_id)
    return DeadLetterList(dead_letters=[_dead_letter(job) for job in failed])


@router.post(
    "/admin/dead-letters/{gateway}/{job}",
    summary="Put a dead letter back into the queue",
    responses=error_responses(*CALLER_ERRORS, AdapterError),
)
async def retry_job(caller: AdminCaller, services: ServicesDependency, job: JobId) -> RetriedJob:
    """Put a dead letter back into the queue."""
    await _change_job(services, caller, job, lambda queue, dead_letter: queue.retry(dead_letter))
    return RetriedJob(retried=True, job_id=job)


@router.delete(
    "/admin/dead-letters/{gateway}/{job}",
    summary="Delete a dead letter",
    responses=error_responses(*CALLER_ERRORS, AdapterError),
)
async def drop_job(caller: AdminCaller, services: ServicesDependency, job: JobId) -> DroppedJob:
    """Delete a dead letter without doing its work."""
    await _change_job(services, caller, job, lambda queue, dead_letter: queue.drop(dead_letter))
    return DroppedJob(dropped=True, job_id=job)


async def _wait_for_flush(
    caller: Caller, at_request: dict[str, Backlog], seconds: float, *, by_pipeline: bool
) -> FlushRequested:
    """Wait until the lake's `deltas` contain everything that was unflushed.

    Args:
        caller: the authenticated caller, whose gateway is flushed.
        at_request: shard (a staging store with some of the tables) → its backlog at the time of the request.
        seconds: seconds to wait, at most.
        by_pipeline: whether a pipeline merges the flushed deltas into state tables.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        shards = await run_in_threadpool(caller.gateway.backlog)
        pairs = [(shard, at_request[shard.shard]) for shard in shards if shard.shard in at_request]
        flushed = all(now.flushed_seq >= before.last_seq for now, before in pairs)
        merged = flushed and all((now.checkpoint_arrival or 0) >= before.last_arrival for now, before in pairs)
        if flushed or loop.time() >= deadline:
            return FlushRequested(
                requested=True,
                flushed=flushed,
                merged=merged if by_pipeline else None,
                snapshot_id=_newest_snapshot(shards) if flushed else None,
            )
        await asyncio.sleep(POLL_SECONDS)


def _newest_snapshot(shards: list[Backlog]) -> str | None:
    """Return the id of the snapshot of the shard that was flushed last; it has the other shards' flushes too."""
    newest = max(shards, key=lambda shard: shard.flushed_ms or 0, default=None)
    return None if newest is None or newest.flushed_snapshot is None else str(newest.flushed_snapshot)


async def _change_job(
    services: Services, caller: Caller, job_id: str, change: Callable[[FlushQueue, FlushJob], None]
) -> None:
    """Apply a change to a dead letter of the caller's gateway.

    Raises:
        NotFoundError: the gateway has no such dead letter.
    """
    queue = services.engine.queue
    failed = [] if queue is None else await run_in_threadpool(queue.failed, caller.gateway.gateway_id)
    found = next((job for job in failed if job.job_id == job_id), None)
    if queue is None or found is None:
        raise NotFoundError(
            f"no dead letter has the id {job_id!r}; GET /admin/dead-letters/{{gateway}} lists those that exist"
        )
    await run_in_threadpool(change, queue, found)


def _dead_letter(job: FlushJob) -> DeadLetter:
    """Convert a job that failed all its attempts to the response's dead letter."""
    return DeadLetter(
        job_id=job.job_id,
        table=job.flushed.table,
        batch_id=job.context.batch_id,
        arrival_hlc=job.context.arrival,
        delta_count=job.flushed.delta_count,
        row_ids=tuple(job.flushed.row_ids),
        attempts=job.attempts,
        failure=job.failure,
    )
