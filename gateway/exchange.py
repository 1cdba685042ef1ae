"""One request and its answer: the id, what the log line says of it, and the headers that every answer carries."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.heads import header
from gateway.metrics import Metrics

log = structlog.get_logger("gateway")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_KEY = "lakesync.exchange"
_SECURITY_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
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
    policy: bytes = b"default-src 'none'; frame-ancestors 'none'"
    """What a browser may do with the answer, as Content-Security-Policy."""

    @staticmethod
    def of(request: HTTPConnection) -> Exchange:
        """The exchange that a request belongs to."""
        return Exchange.within(request.scope)

    @staticmethod
    def within(scope: Scope) -> Exchange:
        """The exchange of an ASGI scope."""
        exchange: Exchange = scope[_KEY]
        return exchange

    @staticmethod
    def begin(scope: Scope) -> Exchange:
        """Make the exchange of an ASGI scope, under the id that its request has or one of our own."""
        exchange = scope[_KEY] = Exchange(_request_id(scope))
        return exchange

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer carries."""
        own = ((b"content-security-policy", self.policy), (b"x-request-id", self.request_id.encode()))
        return [*_SECURITY_HEADERS, *own]

    def record(self, method: str, metrics: Metrics) -> None:
        """Count and log it, at its end."""
        seconds = time.perf_counter() - self.started
        metrics.answered(self.route, method, self.status, seconds)
        if self.code is not None:
            metrics.errors.labels(self.code).inc()
        entry: dict[str, Any] = {
            "method": method,
            "route": self.route,
            "status": self.status,
            "ms": round(seconds * 1000, 2),
            "request_id": self.request_id,
            "gateway": self.gateway,
            "client": self.client,
            "deltas": self.deltas,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "code": self.code,
        }
        log.info("request", **{name: value for name, value in entry.items() if value is not None})


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
        exchange = Exchange.begin(scope)

        async def counted_receive() -> Message:
            message = await receive()
            exchange.bytes_in += len(message.get("body", b""))
            return message

        async def headed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *exchange.headers()]
            else:
                exchange.bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, headed_send)
        finally:
            exchange.record(scope["method"], self._metrics)


def _request_id(scope: Scope) -> str:
    given = header(scope, b"x-request-id")
    return given if given is not None and _REQUEST_ID.fullmatch(given) else new_request_id()


def new_request_id() -> str:
    """An id for a request that brought none."""
    return f"{random.getrandbits(128):032x}"
