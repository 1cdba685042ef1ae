"""The middleware around the routes: it limits the time of a request, and turns every exception into an error response.

FastAPI's exception handlers (`errors.add_error_handlers`) respond to the errors that LakeSync raises on purpose. This
middleware handles the rest: timeouts, programming errors, and requests that come while the server starts or stops.
"""

from __future__ import annotations

import asyncio

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import answer_error
from gateway.request_gate import RequestGate
from gateway.request_log import RequestRecord
from gateway.settings import PREFIXES
from lakesync.model.errors import StagingUnavailableError

log = structlog.get_logger("gateway")

CLIENT_GONE = 499
"""Status in the log of a request whose client disconnected before the response."""
ALWAYS_OPEN = frozenset(prefix + path for prefix in PREFIXES for path in ("/health", "/ready", "/metrics"))
"""Paths that are served even while the server starts and stops."""


class ErrorMiddleware:
    """Turns exceptions into responses. If the response has begun already, uvicorn closes the connection."""

    def __init__(self, app: ASGIApp, gate: RequestGate, timeout: float) -> None:
        """Wrap an application.

        Args:
            app: the next ASGI application.
            gate: knows whether requests are accepted, and counts them.
            timeout: seconds until the response begins, and between two parts of a streamed response.
        """
        self._app = app
        self._gate = gate
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._gate.rejection_reason is not None and scope["path"] not in ALWAYS_OPEN:
            error = StagingUnavailableError(self._gate.rejection_reason, retry_after=1)
            response = answer_error(error, RequestRecord.in_scope(scope))
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        self._gate.request_started()
        try:
            await self._serve(scope, receive, send)
        finally:
            self._gate.request_ended()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request within its time, and respond to an exception of the application."""
        has_begun = False

        async def send_in_time(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message.get("more_body") and not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time() + self._timeout)
            await send(message)

        error: Exception
        record = RequestRecord.in_scope(scope)
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                await self._app(scope, receive, send_in_time)
            return
        except ClientDisconnect:
            record.status = CLIENT_GONE
            return
        except TimeoutError as timeout:
            if not deadline.expired():
                error = timeout
            else:
                error = StagingUnavailableError(
                    f"the request was not done within {self._timeout:g} s and may still take effect; repeat it"
                )
                error.__cause__ = timeout
        except Exception as other:
            error = other
        if has_begun:
            log.error("answer cut short", request_id=record.request_id, exc_info=error)
            raise error
        await answer_error(error, record)(scope, receive, send)
