"""The way in: `GET /sync/{gateway}/ws`, under every prefix."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gateway.admission import Caller, admit
from gateway.errors import error_response
from gateway.exchange import Exchange
from gateway.live.connection import ROUTE, LiveConnection
from gateway.live.protocol import wire_of
from gateway.operations import PREFIXES
from gateway.services import Services
from gateway.serving import KNOWS_RESYNC
from lakesync.model.errors import ForbiddenError, LakeSyncError, NotFoundError, StagingUnavailableError, ValidationError


async def live(websocket: WebSocket) -> None:
    """Hold a connection, or say as HTTP would why not."""
    services = Services.of(websocket)
    exchange = Exchange.begin(websocket.scope)
    exchange.route = ROUTE
    try:
        caller = await _admitted(websocket, services)
    except Exception as error:  # every error has to be answered, whatever it is
        await _refuse(websocket, services, exchange, error)
        return
    connection = LiveConnection(
        services, wire_of(websocket.scope), caller, exchange, knows_resync=KNOWS_RESYNC in websocket.headers
    )
    room = services.hub.enter(caller.gateway, connection)
    services.metrics.connections.set(len(services.hub))
    try:
        await websocket.accept(headers=exchange.headers())
        exchange.status = 101
        exchange.record("GET", services.metrics)
        await connection.run(websocket.receive, room)
    finally:
        services.hub.leave(caller.gateway, connection)
        if connection.follower is not None:
            services.clients.left(caller.gateway.gateway_id, connection.follower)
        services.metrics.connections.set(len(services.hub))


async def nowhere(websocket: WebSocket) -> None:
    """Say as HTTP would that there is no WebSocket under a path."""
    message = f"Not Found: {websocket.url.path} is no WebSocket; connect to /sync/{{gateway}}/ws"
    await _refuse(websocket, Services.of(websocket), Exchange.begin(websocket.scope), NotFoundError(message))


async def _admitted(websocket: WebSocket, services: Services) -> Caller:
    """Let a caller in, where there is room.

    Raises:
        LakeSyncError: as `admit`, and where the page or the number of connections is not allowed, or the server stops.
    """
    if services.drain.refusing is not None:
        raise StagingUnavailableError(services.drain.refusing, retry_after=1)
    origin = websocket.headers.get("origin")
    allowed = services.settings.allowed_origins
    if origin is not None and "*" not in allowed and origin not in allowed:
        raise ForbiddenError(f"pages of {origin!r} may not connect: add it to cors_origins in [gateway]")
    caller = await admit(websocket, token=websocket.query_params.get("token"))
    sub = caller.token_claims["sub"] if caller.token_claims is not None else None
    services.hub.check(caller.gateway.gateway_id, str(sub) if sub is not None else None)
    return caller


async def _refuse(websocket: WebSocket, services: Services, exchange: Exchange, error: Exception) -> None:
    answer = error_response(error, exchange.request_id)
    exchange.code = error.code if isinstance(error, LakeSyncError) else LakeSyncError.code
    exchange.status = answer.status_code
    answer.raw_headers += exchange.headers()
    exchange.record("GET", services.metrics)
    await websocket.send_denial_response(answer)


async def upgrade_missing(request: Request) -> Response:
    """What a request gets that does not ask for a WebSocket."""
    Exchange.of(request).route = ROUTE
    raise ValidationError("this is a WebSocket: connect with ws:// or wss://, or use push and pull over HTTP")


def routes() -> list[BaseRoute]:
    """The Starlette routes."""
    known: list[BaseRoute] = [
        route
        for prefix in PREFIXES
        for route in (
            WebSocketRoute(prefix + ROUTE, live, name=f"live {prefix}"),
            Route(prefix + ROUTE, upgrade_missing, methods=["GET"], name=f"upgrade {prefix}"),
        )
    ]
    return [*known, WebSocketRoute("/{path:path}", nowhere)]
