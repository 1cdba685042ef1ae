"""What an admin asks of the pipeline."""

from __future__ import annotations

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.operations import Operation


class FlushRequested(msgspec.Struct, frozen=True):
    """The request was noted; the pipeline serves it."""

    requested: bool


async def flush(request: Request) -> Response:
    """Ask the pipeline to carry what waits to the lake now."""
    caller = await admit(request, admin=True)
    await run_in_threadpool(caller.gateway.request_flush)
    return bodies.json_response(FlushRequested(True), 202)


OPERATIONS = (
    Operation(
        "POST",
        "/admin/flush/{gateway}",
        flush,
        "Ask for a flush of what waits",
        access="admin",
        answer=FlushRequested,
        status=202,
    ),
)
