"""Accepts all WebSocket connections of the server: the route `GET /sync/{gateway}/ws`, and the `Hub` of connections.

A gateway is one app's stream of changes; its *channel* has all WebSocket connections to it, and sends them what they
lack. The hub limits the number of connections, creates the channels, and passes the store's *notices* to them. A notice
says that a commit has changed rows.

`create_app` creates the hub, and includes `router`, and `fallback` after all other routers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import cast

import structlog
from fastapi import APIRouter, Request, Response, WebSocket

from gateway.compat_uvicorn import protocol_of
from gateway.dependencies import Caller, Services, ServicesDependency, authenticate
from gateway.errors import CLOSE_GOING_AWAY, STOPPING_REASON, respond_to_error
from gateway.live.channel import Channel
from gateway.live.connection import ROUTE, LiveConnection
from gateway.request_log import RequestRecord, header
from gateway.sync_service import CLIENT_HEADER
from gateway.tracked_client import ConnectedClient
from lakesync.auth.keys import Key
from lakesync.config.sections import LimitsSection
from lakesync.engine import SyncGateway
from lakesync.model.errors import (
    BackpressureError,
    ForbiddenError,
    NotFoundError,
    StagingUnavailableError,
    ValidationError,
)
from lakesync.staging.notices import Notice
from lakesync.staging.store.feed import NoticeSource

log = structlog.get_logger("gateway")
router = APIRouter()
fallback = APIRouter()
"""Rejects WebSockets on all other paths, so it must be included last."""


class Hub:
    """Owns the channels and passes each of the store's notices to its gateway's channel.

    Use it from the event loop's thread. The store calls `_on_commit` in a thread of its own.
    """

    def __init__(self, store: NoticeSource, limits: LimitsSection, on_broadcast: Callable[[int], None]) -> None:
        """Create the hub, without channels.

        Args:
            store: the store whose notices of commits are watched.
            limits: the settings in `[limits]`, of which the limits of the numbers of connections are used.
            on_broadcast: called with numbers of sent deltas, whose sum is a metric.
        """
        self._on_broadcast = on_broadcast
        self._store = store
        self._limits = limits
        self._count = 0
        """Number of open connections."""
        self._channels: dict[str, Channel] = {}
        """Gateway id → the channel of its connections; a channel without connections is removed."""
        self._lock = threading.Lock()
        self._notices: list[Notice] = []
        """Notices that the event loop has not passed on yet; guarded by the lock."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the channels; None before `watch`."""
        self._starting: asyncio.Future[None] | None = None
        """The call of `watch` in a worker thread, for which all connections wait; None before the first connection."""
        self._stop_watching: Callable[[], None] | None = None
        """Ends the subscription to the store's notices; None before `watch`."""
        self._is_closed = False
        """Whether `close` was called; guarded by the lock."""

    def __len__(self) -> int:
        return self._count

    def check_limits(self, gateway_id: str, client_id: str | None) -> None:
        """Check that one more connection is allowed.

        Args:
            gateway_id: id of the connection's gateway.
            client_id: id of the client; None if the server runs without a secret, where the client is not known yet.

        Raises:
            BackpressureError: a limit is reached; the message says which.
        """
        channel = self._channels.get(gateway_id)
        counts = [("the server", self._count, self._limits.websocket_connections)]
        if channel is not None:
            counts.append((f"gateway {gateway_id!r}", len(channel), self._limits.websocket_connections_per_gateway))
            if client_id is not None:
                own_count = channel.count_of(client_id)
                counts.append((f"client {client_id!r}", own_count, self._limits.websocket_connections_per_client))
        for owner, count, limit in counts:
            if count >= limit:
                raise BackpressureError(
                    f"{owner} has {count} WebSocket connections, the limit: try again later, or use HTTP",
                    retry_after=5,
                )

    def subscribe(self, gateway: SyncGateway, connection: LiveConnection) -> Channel:
        """Add a connection to a gateway's channel. Await `start` before.

        Args:
            gateway: the connection's gateway.
            connection: the new connection.
        """
        channel = self._channels.setdefault(gateway.gateway_id, Channel(gateway, self._on_broadcast))
        channel.subscribe(connection)
        self._count += 1
        return channel

    async def start(self) -> None:
        """Watch the store, before the first connection, which would miss notices otherwise; wait until that works.

        Raises:
            Exception: an error of the store; the next call tries again.
        """
        if self._starting is None:
            self._starting = asyncio.ensure_future(asyncio.to_thread(self.watch, asyncio.get_running_loop()))
        starting = self._starting
        try:
            await asyncio.shield(starting)
        except Exception:
            if self._starting is starting:  # another connection may have tried again already
                self._starting = None
            raise

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch the store, unless that was done. It may wait for the store, so `start` calls it in a worker thread.

        Args:
            loop: the event loop in which the channels work.
        """
        if self._stop_watching is None:
            self._loop = loop
            stop = self._store.watch(self._on_commit)
            with self._lock:
                self._stop_watching, is_closed = stop, self._is_closed
            if is_closed:  # while the store was waited for
                stop()

    def unsubscribe(self, gateway: SyncGateway, connection: LiveConnection) -> None:
        """Remove a connection that has ended.

        Args:
            gateway: the connection's gateway.
            connection: the ended connection.
        """
        channel = self._channels[gateway.gateway_id]
        channel.unsubscribe(connection)
        self._count -= 1
        if not channel:
            del self._channels[gateway.gateway_id]

    def connected_clients(self, gateway_id: str) -> dict[str, ConnectedClient]:
        """Return client id → connection, for the gateway's connected clients that have pulled."""
        channel = self._channels.get(gateway_id)
        return channel.connected_clients() if channel is not None else {}

    def drain(self) -> None:
        """Close all connections. If a connection's message is being served, it is closed after the response."""
        for channel in list(self._channels.values()):
            channel.close(CLOSE_GOING_AWAY, STOPPING_REASON)

    def close_signed_by(self, keys: frozenset[Key]) -> None:
        """Close all connections whose token was signed by one of these keys."""
        for channel in list(self._channels.values()):
            channel.close_signed_by(keys)

    def close(self) -> None:
        """Stop watching the store."""
        with self._lock:
            self._is_closed, stop = True, self._stop_watching
        if stop is not None:
            stop()

    def _on_commit(self, notice: Notice) -> None:
        """Queue a notice for the event loop. The store calls this in one of its threads."""
        with self._lock:
            if self._is_closed or self._loop is None:
                return
            self._notices.append(notice)
            if len(self._notices) == 1:
                self._loop.call_soon_threadsafe(self._deliver_notices)

    def _deliver_notices(self) -> None:
        """Pass the queued notices to the channels, in the event loop's thread."""
        with self._lock:
            notices, self._notices = self._notices, []
        for notice in notices:
            channel = self._channels.get(notice.gateway)
            if channel is not None:
                try:
                    channel.on_commit(notice)
                except Exception:  # the other notices are those of other gateways too
                    log.exception("notice not delivered", gateway=notice.gateway)


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
        protocol_of(websocket.scope),
        caller,
        record,
        # clients that understand the error RESYNC_REQUIRED send this header, with any value
        knows_resync=header(websocket.scope, CLIENT_HEADER) is not None,
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
