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
from gateway.waiting import outcome
from lakesync.engine.limits import DEFAULT_PULL, MAX_PULL
from lakesync.exceptions import (
    BackpressureError,
    ClockDriftError,
    NotFoundError,
    PayloadTooLargeError,
    ResyncRequiredError,
    SchemaMismatchError,
    ValidationError,
)
from lakesync.types import PushResult, SyncPull, SyncPush, SyncResponse
from lakesync.wire import json

KNOWS_RESYNC = "x-lakesync-client"
"""A client that sends this header is told RESYNC_REQUIRED; any other is sent everything anew instead."""


async def push(request: Request) -> Response:
    """Take a client's deltas."""
    caller = await admit(request)
    services = Services.of(request)
    message = await bodies.read_push(request, services.settings.max_body_bytes)
    exchange = Exchange.of(request)
    exchange.client, exchange.deltas = message.client_id, len(message.deltas)
    result = await outcome(caller.gateway.submit_push(message, caller.claims(message.client_id)))
    services.metrics.pushed.inc(result.accepted)
    return bodies.push_response(request, result)


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
    exchange = Exchange.of(request)
    exchange.client = message.client_id
    if message.source is not None:
        raise NotFoundError(f"no source {message.source!r} is registered; pull without 'source'")
    page = await outcome(
        caller.gateway.submit_pull(
            message, caller.claims(message.client_id), resync_refused=KNOWS_RESYNC in request.headers
        )
    )
    exchange.deltas = len(page.deltas)
    Services.of(request).metrics.pulled.inc(len(page.deltas))
    return bodies.pull_response(request, page)


_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_PULL, "default": DEFAULT_PULL}
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
            Parameter("limit", "Most deltas to send", _LIMIT),
            Parameter("source", "Pull from a registered source instead", {"type": "string"}),
            _RESYNC,
        ),
        answer=SyncResponse,
        media=(JSON, PROTOBUF),
        errors=(ValidationError, ResyncRequiredError),
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
        errors=(ValidationError, PayloadTooLargeError, ResyncRequiredError),
    ),
)
