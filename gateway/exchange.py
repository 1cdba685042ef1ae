"""One request and its answer: the id, what the log line says of it, and the headers that every answer carries."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics import Metrics

log = structlog.get_logger("gateway")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_KEY = "lakesync.exchange"
SECURITY_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"cross-origin"),
]


@dataclass(slots=True)
class Exchange:
    """What is noted about a request while it is served."""

    request_id: str
    started: float = field(default_factory=time.perf_counter)
    route: str = "unmatched"
    """The route's path with its parameters unfilled."""
    gateway: str | None = None
    client: str | None = None
    deltas: int | None = None
    """Deltas pushed or pulled."""
    code: str | None = None
    """The error's code where there was one."""
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @staticmethod
    def of(request: Request) -> Exchange:
        """The exchange that a request belongs to."""
        return Exchange.within(request.scope)

    @staticmethod
    def within(scope: Scope) -> Exchange:
        """The exchange of an ASGI scope."""
        exchange: Exchange = scope[_KEY]
        return exchange


class ExchangeRecorder:
    """The outermost layer: makes the exchange, adds headers, and at the end counts and logs it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = scope[_KEY] = Exchange(_request_id(scope))
        headers = [*SECURITY_HEADERS, (b"x-request-id", exchange.request_id.encode())]

        async def counted_receive() -> Message:
            message = await receive()
            exchange.bytes_in += len(message.get("body", b""))
            return message

        async def headed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *headers]
            else:
                exchange.bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, headed_send)
        finally:
            self._record(scope["method"], exchange)

    def _record(self, method: str, exchange: Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        self._metrics.requests.labels(exchange.route, method, str(exchange.status)).inc()
        self._metrics.seconds.labels(exchange.route).observe(seconds)
        if exchange.code is not None:
            self._metrics.errors.labels(exchange.code).inc()
        entry: dict[str, Any] = {
            "method": method,
            "route": exchange.route,
            "status": exchange.status,
            "ms": round(seconds * 1000, 2),
            "request_id": exchange.request_id,
            "gateway": exchange.gateway,
            "client": exchange.client,
            "deltas": exchange.deltas,
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
            "code": exchange.code,
        }
        log.info("request", **{name: value for name, value in entry.items() if value is not None})


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given: str = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(given):
                return given
    return new_request_id()


def new_request_id() -> str:
    """An id for a request that brought none."""
    return f"{random.getrandbits(128):032x}"
