"""Whether the process lives, and whether it can serve."""

from __future__ import annotations

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.operations import Operation
from gateway.services import Services
from lakesync.exceptions import StagingUnavailableError


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: str


async def health(request: Request) -> Response:  # noqa: ARG001 every endpoint takes one
    """Always good while the process answers."""
    return bodies.json_response(Health("ok"))


async def ready(request: Request) -> Response:
    """Good while the staging store answers and the server is not stopping."""
    services = Services.of(request)
    if services.drain.draining:
        raise StagingUnavailableError("the gateway is stopping", retry_after=1)
    await run_in_threadpool(services.engine.gateways)
    return bodies.json_response(Health("ready"))


OPERATIONS = (
    Operation("GET", "/health", health, "Whether the process lives", access="open", answer=Health),
    Operation(
        "GET",
        "/ready",
        ready,
        "Whether the server takes requests",
        access="open",
        answer=Health,
        errors=(StagingUnavailableError,),
    ),
)
