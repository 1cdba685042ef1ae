"""Work that follows a flush and was set aside after its retries: an admin looks at it, repeats it, or drops it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.operations import Operation, Parameter
from gateway.services import Services
from lakesync.flush import FlushQueue, Job
from lakesync.model.errors import AdapterError, NotFoundError


class DeadLetter(msgspec.Struct, frozen=True, rename="camel"):
    """One table of one flush that could not be brought in line at the destination."""

    job_id: str
    table: str
    batch_id: str
    arrival_hlc: int
    delta_count: int
    row_ids: tuple[str, ...]
    attempts: int
    failure: str | None


class DeadLetters(msgspec.Struct, frozen=True, rename="camel"):
    """All of a gateway, oldest flush first."""

    dead_letters: list[DeadLetter]


class Repeated(msgspec.Struct, frozen=True, rename="camel"):
    """It is in the queue again."""

    retried: bool
    job_id: str


class Dropped(msgspec.Struct, frozen=True, rename="camel"):
    """It is forgotten."""

    dropped: bool
    job_id: str


async def dead_letters(request: Request) -> Response:
    """What was set aside."""
    caller = await admit(request, admin=True)
    queue = Services.of(request).engine.queue
    failed = [] if queue is None else await run_in_threadpool(queue.failed, caller.gateway.gateway_id)
    return bodies.json_response(DeadLetters([_letter(job) for job in failed]))


async def retry(request: Request) -> Response:
    """Put one back into the queue."""
    await _with_job(request, lambda queue, job: queue.retry(job))
    return bodies.json_response(Repeated(True, request.path_params["job"]))


async def drop(request: Request) -> Response:
    """Forget one."""
    await _with_job(request, lambda queue, job: queue.drop(job))
    return bodies.json_response(Dropped(True, request.path_params["job"]))


async def _with_job(request: Request, act: Callable[[FlushQueue, Job], None]) -> None:
    caller = await admit(request, admin=True)
    queue, wanted = Services.of(request).engine.queue, request.path_params["job"]
    failed = [] if queue is None else await run_in_threadpool(queue.failed, caller.gateway.gateway_id)
    job = next((job for job in failed if job.job_id == wanted), None)
    if queue is None or job is None:
        raise NotFoundError(f"no job {wanted!r} was set aside; GET /admin/dead-letters lists those that were")
    await run_in_threadpool(act, queue, job)


def _letter(job: Job) -> DeadLetter:
    return DeadLetter(
        job.job_id,
        job.work.table,
        job.context.batch_id,
        job.context.arrival,
        job.work.delta_count,
        job.work.row_ids,
        job.attempts,
        job.failure,
    )


_JOB = Parameter(
    "job",
    "The id that the list tells",
    {"type": "string", "pattern": "^[0-9a-f]{16}-[A-Za-z0-9_.-]{1,200}$"},
    "path",
    example="0000000000000000-gw.main.1.1-1.todos",
)

OPERATIONS = (
    Operation(
        "GET",
        "/admin/dead-letters/{gateway}",
        dead_letters,
        "List work for destination tables that was set aside",
        access="admin",
        answer=DeadLetters,
        errors=(AdapterError,),
    ),
    Operation(
        "POST",
        "/admin/dead-letters/{gateway}/{job}",
        retry,
        "Put work that was set aside back into the queue",
        access="admin",
        parameters=(_JOB,),
        answer=Repeated,
        errors=(NotFoundError, AdapterError),
    ),
    Operation(
        "DELETE",
        "/admin/dead-letters/{gateway}/{job}",
        drop,
        "Forget work that was set aside",
        access="admin",
        parameters=(_JOB,),
        answer=Dropped,
        errors=(NotFoundError, AdapterError),
    ),
)
