"""The application: routes, layers and what they share, put together."""

from __future__ import annotations

from functools import partial
from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.clients import SeenClients
from gateway.console.route import routes as console_routes
from gateway.drain import Drain
from gateway.errors import http_error_response
from gateway.exchange import Exchange, ExchangeRecorder
from gateway.guard import Guard
from gateway.limits import RateLimit
from gateway.live.hub import Hub, shares_of
from gateway.live.route import routes as live_routes
from gateway.metrics import Metrics
from gateway.openapi import document
from gateway.routes import OPERATIONS
from gateway.routing import SyncRoutes
from gateway.services import Services
from gateway.settings import GatewaySettings
from lakesync.auth import TokenVerifier
from lakesync.engine import Engine
from lakesync.model.errors import NotFoundError, ValidationError

_ASKED_HEADERS = ("Authorization", "Content-Type", "Content-Encoding", "X-LakeSync-Client", "X-Request-Id")
_PACKED_FROM = 1024
"""Bytes of an answer that is compressed where the caller takes that."""
_TOLD_HEADERS = ("X-Checkpoint-Hlc", "X-Request-Id", "Retry-After")


class _Application(FastAPI):
    """FastAPI with the layers that stand here and no others."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one connection."""
        if self.middleware_stack is None or scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """From the outermost to the routes."""
        services: Services = self.state.services
        packed = partial(GZipMiddleware, minimum_size=_PACKED_FROM, compresslevel=1)
        router = packed(ExceptionMiddleware(self.router, {HTTPException: _no_route}))
        routes = SyncRoutes(router, OPERATIONS, packed, _PACKED_FROM)
        across_origins = CORSMiddleware(
            Guard(routes, services.drain, services.settings.request_timeout),
            allow_origins=services.settings.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=_ASKED_HEADERS,
            expose_headers=_TOLD_HEADERS,
        )
        return ExchangeRecorder(across_origins, services.metrics)


def create_app(settings: GatewaySettings, engine: Engine) -> FastAPI:
    """The server's application over an engine that is open; who opened the engine closes it."""
    metrics = Metrics(engine.store.backlog, engine.store.marks, lambda: engine.queue)
    hub = Hub(engine.store, shares_of(settings), metrics.broadcast.inc)
    app = _Application(
        title="LakeSync gateway",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would be to whatever host the request names
        routes=[
            *(route for operation in OPERATIONS for route in operation.routes()),
            *live_routes(),
            *console_routes(),
        ],
    )
    app.state.services = Services(
        settings=settings,
        engine=engine,
        verifier=_verifier(settings, hub),
        rate=RateLimit(settings.requests_per_second),
        metrics=metrics,
        drain=Drain(),
        hub=hub,
        live_rate=RateLimit(settings.messages_per_second),
        described=document(OPERATIONS),
        clients=SeenClients(engine.wall),
    )
    return app


def _verifier(settings: GatewaySettings, hub: Hub) -> TokenVerifier | None:
    if not settings.asks_for_tokens:
        return None
    verifier = TokenVerifier(settings.secrets, issuers=settings.issuers, sole_gateway=settings.sole_gateway)
    verifier.on_withdrawn = hub.end_signed_by
    return verifier


async def _no_route(request: Request, raised: Exception) -> Response:
    error = cast("HTTPException", raised)
    headers = {"Allow": ", ".join(_methods(request))} if error.status_code == 405 else error.headers
    exchange = Exchange.of(request)
    exchange.code = NotFoundError.code if error.status_code == 404 else ValidationError.code
    message = f"{error.detail}: {request.method} {request.url.path}; /openapi.json names every route"
    return http_error_response(error.status_code, message, exchange.code, exchange.request_id, headers)


def _methods(request: Request) -> list[str]:
    """What a path takes: its methods stand in routes of their own."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for methods in found for method in methods})
