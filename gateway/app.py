"""Builds the FastAPI application of the gateway: routers, middleware, exception handlers and shared services.

`python -m gateway` and tests call `create_app`. The shared services (`Services` in `gateway.dependencies`) are the
engine and everything else of which a server has one, such as rate limiters and metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from gateway.admission import RateLimiter, RequestGate
from gateway.client_tracker import ClientTracker
from gateway.dependencies import Services
from gateway.errors import ErrorMiddleware, add_error_handlers
from gateway.live import hub as live
from gateway.live.hub import Hub, limits_of
from gateway.metrics import Metrics
from gateway.openapi_schemas import openapi_document
from gateway.request_log import RequestLogMiddleware
from gateway.routes import ROUTERS
from gateway.settings import PREFIXES, GatewaySettings
from lakesync.auth import TokenVerifier
from lakesync.engine import Engine

_REQUEST_HEADERS = ("Authorization", "Content-Type", "Content-Encoding", "X-LakeSync-Client", "X-Request-Id")
"""Headers that pages of other origins may send."""
_RESPONSE_HEADERS = ("X-Checkpoint-Hlc", "X-Request-Id", "Retry-After")
"""Headers that pages of other origins may read."""
_GZIP_MIN_BYTES = 1024
"""Size from which responses are compressed."""


class GatewayApp(FastAPI):
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
        engine: the engine. `GatewayServer` opens it, or it is open already; the caller closes it.
    """
    metrics = Metrics(engine.store.backlog, engine.store.marks, lambda: engine.queue)
    hub = Hub(engine.store, limits_of(settings), metrics.broadcast.inc)
    services = Services(
        settings=settings,
        engine=engine,
        verifier=_token_verifier(settings, hub),
        rate=RateLimiter(settings.requests_per_second),
        metrics=metrics,
        gate=RequestGate(),
        connected_clients=hub.connected_clients,
        live_rate=RateLimiter(settings.messages_per_second),
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
    app.add_middleware(ErrorMiddleware, gate=services.gate, timeout=settings.request_timeout)
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
    """Build an application with all routes and their OpenAPI document, but without services, so it cannot serve."""
    app = GatewayApp(
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
        for prefix in PREFIXES:
            app.include_router(router, prefix=prefix, include_in_schema=not prefix)
    app.include_router(live.fallback)
    for _ in iter_route_contexts(app.routes):
        pass  # FastAPI builds included routes lazily: do it now, or the first request takes 0.1 s longer
    return app


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
    """Return the verifier of tokens; None if the gateway accepts requests without tokens."""
    if not settings.requires_tokens:
        return None
    verifier = TokenVerifier(settings.secrets, issuers=settings.issuers, sole_gateway=settings.sole_gateway)
    verifier.on_withdrawn = hub.close_signed_by
    return verifier
