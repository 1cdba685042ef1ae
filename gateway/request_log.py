"""Collects facts about each request while it is served, for its log line, the metrics and the response's headers.

`RequestLogMiddleware` creates a `RequestRecord` for each HTTP request, and a WebSocket connection one for its opening
request and for each message; routes add to it. The functions `header` and `all_headers` read a request's headers from
its ASGI scope, in a third of the time that Starlette's `Headers` object takes.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics import Metrics
from lakesync.model.validation import user_of

log = structlog.get_logger("gateway")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""A request id that a caller may choose."""
_SCOPE_KEY = "lakesync.request_record"
"""Key of the record in the request's ASGI scope."""
_SECURITY_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"cross-origin"),
]


def header(scope: Scope, name: bytes) -> str | None:
    """Return the value of the first header with a name; None if the request has no such header.

    Args:
        scope: the request's ASGI scope.
        name: the header's name in lower case.
    """
    for known, value in scope["headers"]:
        if known == name:
            text: str = value.decode("latin-1")
            return text
    return None


def all_headers(scope: Scope, name: bytes) -> list[str]:
    """Return the values of all headers with a name, in their order, to detect a header that is sent twice.

    Args:
        scope: the request's ASGI scope.
        name: the headers' name in lower case.
    """
    return [value.decode("latin-1") for known, value in scope["headers"] if known == name]


@dataclass(slots=True)
class RequestRecord:
    """Facts about one request, collected while it is served."""

    request_id: str
    started: float = field(default_factory=time.perf_counter)
    """When the request began, in seconds of `time.perf_counter`."""
    route: str = "unmatched"
    """Path template of the route, without the prefix `/v1` under which each route is also served."""
    gateway: str | None = None
    """The gateway's id; None before the caller is known."""
    client: str | None = None
    """The token's client, or without a token the client id in the request; None before the caller is known."""
    deltas: int | None = None
    """Number of pushed or pulled deltas; None for other requests."""
    code: str | None = None
    """Error code; None for a success."""
    status: int = 0
    """HTTP status of the response; 0 before it is sent."""
    bytes_in: int = 0
    """Bytes of the request's body."""
    bytes_out: int = 0
    """Bytes of the response's body."""
    content_policy: bytes = b"default-src 'none'; frame-ancestors 'none'"
    """Value of the response's Content-Security-Policy header."""

    @staticmethod
    def of(request: HTTPConnection) -> RequestRecord:
        """Return the record of a request."""
        return RequestRecord.in_scope(request.scope)

    @staticmethod
    def in_scope(scope: Scope) -> RequestRecord:
        """Return the record that `begin` stored in an ASGI scope."""
        record: RequestRecord = scope[_SCOPE_KEY]
        return record

    @staticmethod
    def begin(scope: Scope) -> RequestRecord:
        """Create the record of an ASGI scope, with the request id of the header `X-Request-Id` or a new one."""
        record = scope[_SCOPE_KEY] = RequestRecord(_request_id(scope))
        return record

    def set_client(self, named: str) -> None:
        """Store the client id that a request names, unless the caller's token belongs to another client.

        Otherwise a client could make the log show its rejected requests under another client's id.

        Args:
            named: the client id in the request, unchecked.
        """
        if self.client is None or user_of(named) == self.client:
            self.client = named

    def response_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that every response has: request id, content policy and security headers."""
        per_request = ((b"content-security-policy", self.content_policy), (b"x-request-id", self.request_id.encode()))
        return [*_SECURITY_HEADERS, *per_request]

    def finish(self, method: str, metrics: Metrics) -> None:
        """Count the request in the metrics and write its log line.

        Args:
            method: HTTP method, or the kind of a WebSocket message (`PUSH`, `PULL`, `MESSAGE`).
            metrics: the server's metrics.
        """
        seconds = time.perf_counter() - self.started
        metrics.count_request(self.route, method, self.status, seconds)
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


class RequestLogMiddleware:
    """The outermost middleware: it creates the request's record, adds the headers, and logs the request at the end.

    It passes HEAD on as GET, because FastAPI's routes do not support HEAD; uvicorn sends no body then.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord.begin(scope)
        method = scope["method"]
        scope_as_get = {**scope, "method": "GET"} if method == "HEAD" else scope

        async def counting_receive() -> Message:
            message = await receive()
            record.bytes_in += len(message.get("body", b""))
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *record.response_headers()]
            else:
                record.bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope_as_get, counting_receive, send_with_headers)
        finally:
            route = scope_as_get.get("route")
            if route is not None and record.status != 405:  # a request with a wrong method counts as unmatched
                record.route = route.path
            record.finish(method, self._metrics)


def new_request_id() -> str:
    """Return a random id for a request that has none."""
    return f"{random.getrandbits(128):032x}"


def _request_id(scope: Scope) -> str:
    """Return the request id of the header `X-Request-Id`, or a new one if it is absent or invalid."""
    given = header(scope, b"x-request-id")
    return given if given is not None and _REQUEST_ID.fullmatch(given) else new_request_id()
