"""Whether the process lives, and whether it can serve."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.operations import Operation
from gateway.readiness import check_ready
from gateway.services import Services
from lakesync.model.errors import StagingUnavailableError


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: str


async def health(request: Request) -> Response:  # noqa: ARG001 every endpoint takes one
    """Always good while the process answers."""
    return bodies.json_response(Health("ok"))


async def ready(request: Request) -> Response:
    """Good while work is taken; otherwise the error says what is missing."""
    await check_ready(Services.of(request))
    return bodies.json_response(Health("ready"))


OPERATIONS = (
    Operation("GET", "/health", health, "Whether the process lives", access="open", answer=Health),
    Operation(
        "GET",
        "/ready",
        ready,
        "Whether the server takes work; the error begins with what is missing: starting, draining, store, disk, behind",
        access="open",
        answer=Health,
        errors=(StagingUnavailableError,),
    ),
)
