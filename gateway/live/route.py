"""The route `GET /sync/{gateway}/ws`, which accepts and serves WebSocket connections.

`create_app` includes `router`, and `fallback` after all other routers. Routes have complete paths; no prefix is added.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from fastapi import APIRouter, Request, Response, WebSocket

from gateway.compat_uvicorn import wire_of
from gateway.dependencies import Caller, authenticate
from gateway.errors import respond_to_error
from gateway.headers import header
from gateway.live.connection import ROUTE, LiveConnection
from gateway.live.hub import Hub
from gateway.request_log import RequestRecord
from gateway.services import Services, ServicesDependency
from gateway.sync_service import RESYNC_HEADER
from lakesync.model.errors import ForbiddenError, NotFoundError, StagingUnavailableError, ValidationError

router = APIRouter()
fallback = APIRouter()
"""Rejects WebSockets on all other paths, so it must be included last."""


@router.websocket(ROUTE)
async def live(websocket: WebSocket, gateway: str, services: ServicesDependency) -> None:
    """Serve a WebSocket connection until either side closes it.

    A rejected connection gets the same error response as an HTTP request.
    """
    hub = cast("Hub", websocket.app.state.hub)
    record = RequestRecord.begin(websocket.scope)
    record.route = ROUTE
    try:
        caller = await _admit(websocket, services, hub, gateway)
    except Exception as error:
        await _deny(websocket, services, record, error)
        return
    connection = LiveConnection(
        services,
        wire_of(websocket.scope),
        caller,
        record,
        knows_resync=header(websocket.scope, RESYNC_HEADER) is not None,  # clients send it with any value
    )
    # Subscribe before `accept`, which waits: else more connections than the limit could pass the check in `_admit`.
    # The channel sends nothing before the client has named itself and pulled.
    channel = hub.subscribe(caller.gateway, connection)
    services.metrics.connections.set(len(hub))
    try:
        try:
            await websocket.accept(headers=record.response_headers())
            record.status = 101
        finally:  # the client may have disconnected: as for other requests, that is logged with the status 0
            record.finish("GET", services.metrics)
        await connection.run(websocket.receive, partial(channel.on_ready, connection))
    finally:
        hub.unsubscribe(caller.gateway, connection)
        if connection.subscriber is not None:  # the client has named itself
            services.clients.record_disconnect(caller.gateway.gateway_id, connection.subscriber)
        services.metrics.connections.set(len(hub))


@router.get(ROUTE, include_in_schema=False)
async def reject_plain_request(request: Request) -> Response:  # noqa: ARG001 FastAPI routes on the signature
    """Reject an HTTP request to the WebSocket's path."""
    raise ValidationError("this is a WebSocket: connect with ws:// or wss://, or use push and pull over HTTP")


@fallback.websocket("/{path:path}")
async def reject_other_path(websocket: WebSocket, services: ServicesDependency) -> None:
    """Reject a WebSocket on any other path with 404."""
    message = f"Not Found: {websocket.url.path} is no WebSocket; connect to /sync/{{gateway}}/ws"
    await _deny(websocket, services, RequestRecord.begin(websocket.scope), NotFoundError(message))


async def _admit(websocket: WebSocket, services: Services, hub: Hub, gateway: str) -> Caller:
    """Authenticate the caller of a new connection and check the limits of connections.

    Raises:
        LakeSyncError: as `authenticate`; or the page's origin is not allowed, a limit is reached, or the server stops.
    """
    if services.gate.rejection_reason is not None:
        raise StagingUnavailableError(services.gate.rejection_reason, retry_after=1)
    origin = websocket.headers.get("origin")
    allowed = services.settings.allowed_origins
    if origin is not None and "*" not in allowed and origin not in allowed:
        raise ForbiddenError(f"pages of {origin!r} may not connect: add it to cors_origins in [gateway]")
    token_headers = websocket.headers.getlist("authorization")
    caller = await authenticate(
        websocket, services, gateway, token_headers, query_token=websocket.query_params.get("token")
    )
    sub = str(caller.token_claims["sub"]) if caller.token_claims is not None else None
    await hub.start()
    hub.check_limits(caller.gateway.gateway_id, sub)
    return caller


async def _deny(websocket: WebSocket, services: Services, record: RequestRecord, error: Exception) -> None:
    """Respond to the opening request with an error, as to an HTTP request."""
    response = respond_to_error(error, record)
    record.status = response.status_code
    response.raw_headers += record.response_headers()
    record.finish("GET", services.metrics)
    await websocket.send_denial_response(response)
