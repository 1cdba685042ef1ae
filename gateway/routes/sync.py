"""Push and pull."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import Caller, admit
from gateway.exchange import Exchange
from gateway.forms import HLC, ID
from gateway.operations import JSON, PROTOBUF, Operation, Parameter
from gateway.services import Services
from gateway.serving import KNOWS_RESYNC, serve_pull, serve_push
from lakesync.engine.limits import DEFAULT_PULL, MAX_PULL
from lakesync.model.errors import (
    AdapterError,
    BackpressureError,
    ClockDriftError,
    NotFoundError,
    PayloadTooLargeError,
    ResyncRequiredError,
    SchemaMismatchError,
    ValidationError,
)
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse
from lakesync.wire import json


async def push(request: Request) -> Response:
    """Take a client's deltas."""
    caller = await admit(request)
    services = Services.of(request)
    message = await bodies.read_push(request, services.settings.max_body_bytes)
    seen = message.last_seen_hlc if KNOWS_RESYNC in request.headers else None
    return bodies.push_response(request, await serve_push(services, Exchange.of(request), caller, message, seen))


async def pull_by_query(request: Request) -> Response:
    """Send what a client lacks, asked by query parameters."""
    caller = await admit(request)
    query = dict(request.query_params)
    query["clientId"] = caller.client_id(query.get("clientId"))
    return await _pull(request, caller, json.parse_pull(query))


async def pull_by_body(request: Request) -> Response:
    """Send what a client lacks, asked by a body."""
    caller = await admit(request)
    return await _pull(request, caller, await bodies.read_pull(request, Services.of(request).settings.max_body_bytes))


async def _pull(request: Request, caller: Caller, message: SyncPull) -> Response:
    knows_resync = KNOWS_RESYNC in request.headers
    page = await serve_pull(Services.of(request), Exchange.of(request), caller, message, knows_resync=knows_resync)
    return bodies.pull_response(request, page)


LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_PULL, "default": DEFAULT_PULL}
_RESYNC = Parameter(
    "X-LakeSync-Client",
    "The client understands RESYNC_REQUIRED; without it a cursor that cannot be served is answered with everything",
    {"type": "string"},
    "header",
)

OPERATIONS = (
    Operation(
        "POST",
        "/sync/{gateway}/push",
        push,
        "Push deltas; all are kept or none, and a repeat changes nothing",
        body=SyncPush,
        answer=PushResult,
        media=(JSON, PROTOBUF),
        errors=(
            ValidationError,
            PayloadTooLargeError,
            ClockDriftError,
            SchemaMismatchError,
            BackpressureError,
        ),
    ),
    Operation(
        "GET",
        "/sync/{gateway}/pull",
        pull_by_query,
        "Pull what the client lacks",
        parameters=(
            Parameter("since", "Cursor: the serverHlc of the last answer, 0 at first", HLC),
            Parameter("clientId", "Who pulls; equals the token's sub", ID),
            Parameter("limit", "Most deltas to send", LIMIT),
            Parameter("source", "Pull from a registered source instead", {"type": "string"}),
            _RESYNC,
        ),
        answer=SyncResponse,
        media=(JSON, PROTOBUF),
        errors=(ValidationError, NotFoundError, ResyncRequiredError, AdapterError),
    ),
    Operation(
        "POST",
        "/sync/{gateway}/pull",
        pull_by_body,
        "Pull what the client lacks",
        parameters=(_RESYNC,),
        body=SyncPull,
        answer=SyncResponse,
        media=(JSON, PROTOBUF),
        errors=(ValidationError, PayloadTooLargeError, NotFoundError, ResyncRequiredError, AdapterError),
    ),
)
