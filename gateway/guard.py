"""The layer next to the routes: errors become answers, a request has its time, work is refused at start and end."""

from __future__ import annotations

import asyncio

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.drain import Drain
from gateway.errors import error_response
from gateway.exchange import Exchange
from gateway.operations import PREFIXES
from lakesync.model.errors import LakeSyncError, StagingUnavailableError

log = structlog.get_logger("gateway")

CLIENT_GONE = 499
"""The status in the log of a request whose client went away before it was answered."""
ALWAYS_OPEN = frozenset(prefix + path for prefix in PREFIXES for path in ("/health", "/ready", "/metrics"))
"""Also while the server starts and stops."""


class Guard:
    """Nothing raised below it reaches the server, unless the answer has begun: then the connection is cut."""

    def __init__(self, app: ASGIApp, drain: Drain, timeout: float) -> None:
        self._app = app
        self._drain = drain
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request within the time limit; each part of a streamed answer has the limit anew."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._drain.refusing is not None and scope["path"] not in ALWAYS_OPEN:
            error = StagingUnavailableError(self._drain.refusing, retry_after=1)
            answer = self._answer(error, scope)
            answer.headers["Connection"] = "close"
            await answer(scope, receive, send)
            return
        self._drain.enter()
        try:
            await self._guarded(scope, receive, send)
        finally:
            self._drain.leave()

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def timed_send(message: Message) -> None:
            nonlocal begun
            begun = True
            if message.get("more_body") and not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time() + self._timeout)
            await send(message)

        error: Exception
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                await self._app(scope, receive, timed_send)
            return
        except ClientDisconnect:
            Exchange.within(scope).status = CLIENT_GONE
            return
        except TimeoutError as late:
            if not deadline.expired():
                error = late
            else:
                error = StagingUnavailableError(
                    f"the request was not done within {self._timeout:g} s and may still take effect; repeat it"
                )
                error.__cause__ = late
        except Exception as other:  # every error has to be answered, whatever it is
            error = other
        if begun:
            log.error("answer cut short", request_id=Exchange.within(scope).request_id, exc_info=error)
            raise error
        await self._answer(error, scope)(scope, receive, send)

    def _answer(self, error: Exception, scope: Scope) -> Response:
        exchange = Exchange.within(scope)
        exchange.code = error.code if isinstance(error, LakeSyncError) else LakeSyncError.code
        if exchange.code == LakeSyncError.code:
            log.error("request failed", request_id=exchange.request_id, exc_info=error)
        return error_response(error, exchange.request_id)
