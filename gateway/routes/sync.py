"""The routes `/sync/{gateway}/push` and `/sync/{gateway}/pull`, over which clients push and pull by HTTP.

A gateway is one app's stream of changes. A push has deltas (changes of rows); a pull fetches a page of those that the
client lacks. A *cursor* is the number from which a client pulls next. `gateway.sync_service` serves both. For speed the
handlers take the raw request and call the functions of the dependencies themselves. FastAPI needs 0.12 ms to resolve
dependencies, 9 % of the processor time of a push of 100 deltas. msgspec decodes such a push in 0.3 ms; a pydantic model
would take 2 ms.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from gateway.dependencies import Caller, Services, authenticate, get_services
from gateway.openapi_schemas import (
    CALLER_ERRORS,
    GATEWAY_PARAMETER,
    HLC,
    ID,
    PROTOBUF,
    Struct,
    error_responses,
    header_parameter,
    query_parameter,
    request_body,
)
from gateway.request_body import decode_if_large, decode_pull, limited_body, pull_response, push_decoder, push_response
from gateway.request_log import RequestRecord, all_headers, header
from gateway.sync_service import CLIENT_HEADER, serve_pull, serve_push
from lakesync.engine.checks import MAX_PULL
from lakesync.feed.positions import NEVER_PULLED
from lakesync.model.errors import (
    AdapterError,
    BackpressureError,
    ClockDriftError,
    PayloadTooLargeError,
    ResyncRequiredError,
    SchemaMismatchError,
)
from lakesync.model.types import DEFAULT_MAX_DELTAS, PushResult, SyncPull, SyncPush, SyncResponse
from lakesync.wire import json


class RawRoute(APIRoute):
    """A route whose endpoint takes only the unparsed request and returns a response."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, without FastAPI's steps that resolve dependencies."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


router = APIRouter(prefix="/sync/{gateway}", route_class=RawRoute)

LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_PULL, "default": DEFAULT_MAX_DELTAS}
"""OpenAPI schema of the query parameter `limit`: the most deltas of a page."""
_CONFIRMS_CURSOR = header_parameter(
    "X-LakeSync-Client",
    "lastSeenHlc is a cursor of this gateway, up to which the client has everything; without it only 0 and 1 count",
)
_RESYNC = header_parameter(
    "X-LakeSync-Client",
    "The client understands RESYNC_REQUIRED; without it a cursor that cannot be served is answered with everything",
)
_TOKEN: list[dict[str, list[str]]] = [{"token": []}]
_IN_PROTOBUF: dict[str, Any] = {"content": {PROTOBUF: {}}}


@router.post(
    "/push",
    summary="Push deltas, all or none; a repeat changes nothing",
    response_model=Struct[PushResult],
    responses=error_responses(
        *CALLER_ERRORS, PayloadTooLargeError, ClockDriftError, SchemaMismatchError, BackpressureError
    )
    | {200: _IN_PROTOBUF},
    openapi_extra={
        "security": _TOKEN,
        "parameters": [GATEWAY_PARAMETER, _CONFIRMS_CURSOR],
        **request_body(SyncPush, PROTOBUF),
    },
)
async def push(request: Request) -> Response:
    """Commit a client's deltas."""
    services, caller = await _authenticate(request)
    decode = await decode_if_large(push_decoder(request), await limited_body(request, services))
    knows_resync = header(request.scope, CLIENT_HEADER) is not None

    def confirmed(push: SyncPush) -> int | None:
        """Return the cursor of the push, up to which the sender has all changes; the response continues from it.

        None if it is unknown: a client without `CLIENT_HEADER` may send another timestamp in place of its cursor.
        """
        # 0, or `NEVER_PULLED` of a client that pushed before its first pull: such a cursor skips no change
        never_pulled = push.last_seen_hlc <= NEVER_PULLED
        return push.last_seen_hlc if knows_resync or never_pulled else None

    result = await serve_push(services, RequestRecord.of(request), caller, decode, confirmed)
    return push_response(request, result)


@router.get(
    "/pull",
    summary="Pull the changes that the client lacks",
    response_model=Struct[SyncResponse],
    responses=error_responses(*CALLER_ERRORS, ResyncRequiredError, AdapterError) | {200: _IN_PROTOBUF},
    openapi_extra={
        "security": _TOKEN,
        "parameters": [
            GATEWAY_PARAMETER,
            query_parameter("since", "Cursor: the serverHlc of the last answer, 0 at first", HLC),
            query_parameter("clientId", "Client id; equals the token's sub", ID),
            query_parameter("limit", "Most deltas to return", LIMIT),
            query_parameter("source", "Pull from a registered source instead", {"type": "string"}),
            _RESYNC,
        ],
    },
)
async def pull_by_query(request: Request) -> Response:
    """Return a page of what a client lacks; the request is in the query.

    The query is parsed as a whole, because it may have the names that a posted body has too: `sinceHlc` for `since`.
    """
    services, caller = await _authenticate(request)
    query = dict(request.query_params)
    query["clientId"] = caller.client_id(query.get("clientId"))
    return await _pull(request, services, caller, json.parse_pull(query))


@router.post(
    "/pull",
    summary="Pull the changes that the client lacks",
    response_model=Struct[SyncResponse],
    responses=error_responses(*CALLER_ERRORS, PayloadTooLargeError, ResyncRequiredError, AdapterError)
    | {200: _IN_PROTOBUF},
    openapi_extra={
        "security": _TOKEN,
        "parameters": [GATEWAY_PARAMETER, _RESYNC],
        **request_body(SyncPull, PROTOBUF),
    },
)
async def pull_by_body(request: Request) -> Response:
    """Return a page of what a client lacks; the request is in the body, in JSON or protobuf."""
    services, caller = await _authenticate(request)
    message = decode_pull(request, await limited_body(request, services))
    return await _pull(request, services, caller, message)


async def _authenticate(request: Request) -> tuple[Services, Caller]:
    """Authenticate the caller, as the dependencies `get_services` and `client_caller` do."""
    services = await get_services(request)
    token_headers = all_headers(request.scope, b"authorization")
    return services, await authenticate(request, services, request.path_params["gateway"], token_headers)


async def _pull(request: Request, services: Services, caller: Caller, message: SyncPull) -> Response:
    """Serve a pull, whose parameters come from the query or the body."""
    knows_resync = header(request.scope, CLIENT_HEADER) is not None
    page = await serve_pull(services, RequestRecord.of(request), caller, message, knows_resync=knows_resync)
    return await pull_response(request, page)
