"""The gateway's server: the FastAPI application (`create_app`) and the uvicorn server that runs it (`GatewayServer`).

`python -m gateway` and tests call both. The application has the routers, middleware, exception handlers and the shared
services (`Services` in `gateway.dependencies`): the engine, which does the work of all gateways, and everything else of
which a server has one, such as rate limiters, metrics, and the hub of all WebSocket connections. Apart from these
names, a *gateway* is one app's stream of changes; a server has many. The server listens before the engine's store is
open, and finishes requests before it stops.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from types import FrameType
from typing import Any, cast

import structlog
import uvicorn
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from gateway.admission import RateLimiter, RequestGate
from gateway.client_tracker import ClientTracker
from gateway.compat_uvicorn import LimitedHttpProtocol, LiveWebSocketProtocol
from gateway.dependencies import Services
from gateway.errors import ErrorMiddleware, add_error_handlers
from gateway.live import hub as live
from gateway.live.hub import Hub
from gateway.metrics import Metrics
from gateway.openapi_schemas import openapi_document
from gateway.request_log import RequestLogMiddleware
from gateway.routes import ROUTERS
from gateway.settings import PREFIXES, GatewaySettings
from lakesync.auth import TokenVerifier
from lakesync.engine import Engine
from lakesync.model.errors import StartupError

_REQUEST_HEADERS = ("Authorization", "Content-Type", "Content-Encoding", "X-LakeSync-Client", "X-Request-Id")
"""Headers that pages of other origins may send."""
_RESPONSE_HEADERS = ("X-Checkpoint-Hlc", "X-Request-Id", "Retry-After")
"""Headers that pages of other origins may read."""
_GZIP_MIN_BYTES = 1024
"""Size from which responses are compressed."""
log = structlog.get_logger("gateway")

_OTHER_FILES = 1024
"""Number of open files that are allowed besides WebSocket connections, for HTTP connections, the store and others."""


class _GatewayApp(FastAPI):
    """A FastAPI application whose OpenAPI document describes LakeSync's error responses instead of FastAPI's."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, which is built once."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi_document(self)
        return self.openapi_schema


def create_app(settings: GatewaySettings, engine: Engine) -> FastAPI:
    """Build the application that serves an engine.

    Args:
        settings: the server's settings.
        engine: the engine. `GatewayServer` has it opened, unless it is open already; the caller closes it.
    """
    metrics = Metrics(
        engine.store.backlog,
        engine.store.marks,
        settings.engine_limits.max_backpressure_bytes,
        lambda: engine.queue,
    )
    hub = Hub(engine.store, settings.limits, metrics.broadcast.inc)
    services = Services(
        settings=settings,
        engine=engine,
        verifier=_token_verifier(settings, hub),
        http_rate=RateLimiter(settings.limits.requests_per_second),
        metrics=metrics,
        gate=RequestGate(),
        connected_clients=hub.connected_clients,
        live_rate=RateLimiter(settings.limits.websocket_messages_per_second),
        clients=ClientTracker(engine.wall),
    )
    app = build_routes()
    app.state.services = services
    app.state.hub = hub
    add_error_handlers(app)
    # Each middleware wraps those that were added before it, so the request log sees a request first.
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_GZIP_MIN_BYTES,
        compresslevel=1,
        exclude_content_types=(),  # no response is compressed already, and Starlette's own list costs time per request
    )
    app.add_middleware(ErrorMiddleware, gate=services.gate, timeout=settings.limits.request_timeout_seconds)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=_REQUEST_HEADERS,
        expose_headers=_RESPONSE_HEADERS,
    )
    app.add_middleware(RequestLogMiddleware, metrics=metrics)
    return app


def build_routes() -> FastAPI:
    """Build an application with all routes and their OpenAPI document, but without services, so it cannot serve.

    Tests of routes and of the document call it too.
    """
    app = _GatewayApp(
        title="LakeSync gateway",
        version=version("lakesync"),
        servers=[{"url": prefix or "/"} for prefix in reversed(PREFIXES)],
        openapi_url=None,  # routes.pages serves it under both prefixes
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would lead to the host that the request's Host header names
        generate_unique_id_function=lambda route: route.name,
        lifespan=_lifespan,
        # The gateway has its own log and metrics. FastAPI's telemetry would take time in every request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    for router in (*ROUTERS, live.router):
        for prefix in PREFIXES:  # none and `/v1`
            app.include_router(router, prefix=prefix, include_in_schema=not prefix)
    app.include_router(live.fallback)  # rejects WebSockets on all other paths
    for _ in iter_route_contexts(app.routes):
        pass  # FastAPI builds included routes lazily: do it now, or the first request takes 0.1 s longer
    return app


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    The protocol IPPROTO_TCP is given explicitly, because asyncio switches Nagle's algorithm off only then. Without that
    small responses take 30 times as long.

    Args:
        host: address or name to listen on.
        port: port to listen on; 0 for any free port.

    Raises:
        StartupError: the address cannot be used.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        raise StartupError(
            f"the gateway cannot listen on {host}:{port}: {error.strerror}; use another --port"
        ) from error
    return bound


class GatewayServer(uvicorn.Server):
    """A uvicorn server that stops in two steps: it rejects new requests and finishes those in flight, then exits."""

    def __init__(self, app: FastAPI, settings: GatewaySettings, start_engine: Callable[[], None] | None = None) -> None:
        """Configure the server, and raise the process's limit of open files; `run` starts it.

        With `start_engine`, requests are rejected from now on.

        Args:
            app: the result of `create_app`.
            settings: the server's settings.
            start_engine: opens the engine with its store. It is called in a worker thread once the server listens;
                requests are accepted when it has returned. None if the engine is open already.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedHttpProtocol,
                ws=LiveWebSocketProtocol,
                ws_max_size=settings.limits.max_body_bytes + 1,  # a message has a tag byte before its body
                ws_per_message_deflate=False,  # one frame is sent to many connections
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=max(1, round(settings.limits.request_timeout_seconds)),
            )
        )
        _raise_file_limit(settings.limits.websocket_connections)
        self._gate = Services.of_app(app).gate
        self._hub = cast("Hub", app.state.hub)
        self._drain_seconds = settings.limits.request_timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop; None before `startup`."""
        self._drain_task: asyncio.Task[None] | None = None
        """Runs `_drain`; None before the first signal."""
        self._start_engine = start_engine
        if start_engine is not None:
            self._gate.close_for_startup()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then open the store, then accept requests.

        Args:
            sockets: listening sockets.

        Raises:
            StagingUnavailableError, StagingVersionError: as the store's `open`.
        """
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._start_engine is not None:
            for bound in sockets or ():
                log.info("starting", url=_url(bound))
            try:
                await asyncio.to_thread(self._start_engine)
            except Exception:
                await self.lifespan.shutdown()  # otherwise uvicorn logs the cancelled application with a traceback
                raise
            self._gate.open()
        for bound in sockets or ():
            log.info("listening", url=_url(bound))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 the signature is uvicorn's
        """Start to drain at the first signal; exit immediately at a second SIGINT; ignore a second SIGTERM."""
        if self._loop is None or (self._drain_task is not None and sig == signal.SIGINT):
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._start_draining, sig)

    def _start_draining(self, sig: int) -> None:
        """Begin to end the server, at the first signal."""
        if self._drain_task is None:
            self._drain_task = asyncio.ensure_future(self._drain(sig))

    async def _drain(self, sig: int) -> None:
        """Accept no new work, wait for requests in progress, then let uvicorn exit."""
        log.info("draining", signal=signal.Signals(sig).name, in_flight=self._gate.in_flight)
        self._hub.drain()
        finished = await self._gate.drain(self._drain_seconds)
        log.info("drained", finished=finished, in_flight=self._gate.in_flight)
        self.should_exit = True


def _raise_file_limit(connections: int) -> None:
    """Raise the process's limit of open files for a number of WebSocket connections.

    It logs a warning if the system does not allow so many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        log.warning(
            "the system allows fewer open files than websocket_connections needs: raise its hard limit",
            allowed=hard,
            needed=needed,
        )
        needed = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Refresh the token issuers' keys while the server runs, and stop watching the store at the end."""
    services = Services.of_app(app)
    keys = None if services.verifier is None else asyncio.create_task(services.verifier.keep_keys_fresh())
    try:
        yield
    finally:
        if keys is not None:
            keys.cancel()
        app.state.hub.close()


def _token_verifier(settings: GatewaySettings, hub: Hub) -> TokenVerifier | None:
    """Return the verifier of tokens; None if the server accepts requests without tokens."""
    if not settings.requires_tokens:
        return None
    verifier = TokenVerifier(settings.secrets, issuers=settings.issuers, sole_gateway=settings.sole_gateway)
    verifier.on_withdrawn = hub.close_signed_by  # called with the keys that an issuer no longer lists
    return verifier


def _url(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
