"""Turns errors into responses: HTTP status and JSON body, or the close code and reason of a WebSocket connection.

FastAPI's exception handlers respond to the errors that LakeSync raises on purpose. `ErrorMiddleware` handles the rest:
timeouts, programming errors, and requests that come while the server starts or stops. `create_app` registers both. Some
requests reach neither, and their callers use the functions directly: the server's HTTP protocol (`compat_uvicorn`) for
a request that cannot be parsed, and `gateway.live` for WebSockets. `docs/websocket.md` lists what a client does after
each close code.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import cast

import msgspec
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admission import RequestGate
from gateway.request_log import RequestRecord
from gateway.settings import PREFIXES
from lakesync.model import errors
from lakesync.model.errors import (
    BackpressureError,
    LakeSyncError,
    NotFoundError,
    PayloadTooLargeError,
    RateLimitedError,
    RejectedError,
    Rejection,
    StagingUnavailableError,
    TransientError,
    ValidationError,
    shortened,
)

log = structlog.get_logger("gateway")

STATUSES: dict[type[LakeSyncError], int] = {
    errors.ValidationError: 400,
    errors.PayloadTooLargeError: 413,
    errors.DuplicateError: 409,
    errors.AuthError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.ClockDriftError: 409,
    errors.ResyncRequiredError: 409,
    errors.SchemaError: 400,
    errors.SchemaMismatchError: 422,
    errors.RateLimitedError: 429,
    errors.BackpressureError: 503,
    errors.StagingUnavailableError: 503,
    errors.LakeUnavailableError: 503,
    errors.StartupError: 503,
    errors.AdapterError: 502,
    errors.FlushError: 500,
    errors.CommitUnknownError: 500,
    errors.CommitConflictError: 500,
    errors.IntegrityError: 500,
    errors.CensusError: 500,
    errors.ConfigurationError: 500,
    errors.StagingVersionError: 500,
    LakeSyncError: 500,
}
"""Error class → HTTP status. A class that is missing has the status of its nearest base."""

INTERNAL = "the gateway failed; the request id names the entry in its log"
"""Message for unexpected errors, whose own message may contain secrets."""
RETRY_AFTER_SECONDS = 1.0
"""Seconds in the Retry-After header of the statuses 429 and 503, if the error has no value."""


class ErrorBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Body of every error response."""

    error: str
    code: str
    request_id: str
    rejected: tuple[Rejection, ...] = ()
    """The rejected deltas of a push; absent for other errors."""


def add_error_handlers(app: FastAPI) -> None:
    """Register the exception handlers for LakeSync's errors, invalid parameters, and unknown paths and methods."""
    app.add_exception_handler(LakeSyncError, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_parameters)
    app.add_exception_handler(HTTPException, _handle_no_route)


def status_of(kind: type[LakeSyncError]) -> int:
    """Return the HTTP status of an error class."""
    return next(STATUSES[base] for base in kind.__mro__ if base in STATUSES)


def respond_to_error(error: Exception, record: RequestRecord) -> Response:
    """Return the response to an exception, store its code in the request's record, and log an unexpected one.

    Args:
        error: the exception.
        record: the record of the request.
    """
    note_error(error, record)
    return error_response(error, record.request_id)


def note_error(error: Exception, record: RequestRecord) -> None:
    """Store an exception's code in the request's record, and log what its response does not contain.

    Args:
        error: the exception.
        record: the record of the request.
    """
    record.code = code_of(error)
    if record.code == LakeSyncError.code:  # unexpected
        log.error("request failed", request_id=record.request_id, exc_info=error)
    elif isinstance(error, TransientError) and error.details:
        log.warning("request failed", request_id=record.request_id, error=str(error))


def code_of(error: Exception) -> str:
    """Return the code of an exception in responses and metrics; `INTERNAL_ERROR` for an unexpected one."""
    return error.code if isinstance(error, LakeSyncError) else LakeSyncError.code


def error_response(error: Exception, request_id: str) -> Response:
    """Return the response to an exception. It discloses nothing about an unexpected one.

    Args:
        error: the exception.
        request_id: id of the request.
    """
    if not isinstance(error, LakeSyncError) or error.code == LakeSyncError.code:
        return _response(500, ErrorBody(INTERNAL, LakeSyncError.code, request_id))
    status = status_of(type(error))
    rejected = tuple(map(_with_short_message, error.rejected)) if isinstance(error, RejectedError) else ()
    headers = {}
    seconds = error.retry_after if isinstance(error, TransientError) else None
    if seconds is None and status in (429, 503):
        seconds = RETRY_AFTER_SECONDS
    if seconds is not None:
        headers["Retry-After"] = str(math.ceil(seconds))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _response(status, ErrorBody(shortened(error.public_message), error.code, request_id, rejected), headers)


def http_error_response(
    status: int, message: str, code: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response to a request that reaches no route.

    Args:
        status: HTTP status.
        message: what is wrong.
        code: LakeSync's error code.
        request_id: id of the request.
        headers: further response headers.
    """
    return _response(status, ErrorBody(shortened(message), code, request_id), headers)


_CLIENT_GONE = 499
"""Status in the log of a request whose client disconnected before the response."""
_ALWAYS_OPEN = frozenset(prefix + path for prefix in PREFIXES for path in ("/health", "/ready", "/metrics"))
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
        if self._gate.rejection_reason is not None and scope["path"] not in _ALWAYS_OPEN:
            error = StagingUnavailableError(self._gate.rejection_reason, retry_after=1)
            response = respond_to_error(error, RequestRecord.in_scope(scope))
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
            if message.get("more_body") and not deadline.expired():  # another part follows, and has its own time
                deadline.reschedule(asyncio.get_running_loop().time() + self._timeout)
            await send(message)

        error: Exception
        record = RequestRecord.in_scope(scope)
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                await self._app(scope, receive, send_in_time)
            return
        except ClientDisconnect:
            record.status = _CLIENT_GONE
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
        await respond_to_error(error, record)(scope, receive, send)


# Close codes of WebSocket connections.

CLOSE_GOING_AWAY = 1001
"""The server stops."""
CLOSE_BAD_FRAME = 1002
"""A message does not follow LakeSync's protocol."""
CLOSE_REJECTED = 1008
"""The request is rejected; the code at the beginning of the reason says whether it is of use to repeat it later."""
CLOSE_TOO_BIG = 1009
"""A message exceeds a limit of size."""
CLOSE_FAILED = 1011
"""An unexpected error of the server."""
CLOSE_TRY_LATER = 1013
"""The server lacks something at present, such as its staging store."""
_STANDARD_CODES = frozenset({*range(1000, 1004), *range(1005, 1016)})
"""Close codes that RFC 6455 and IANA define."""
STOPPING_REASON = "the gateway is stopping: connect again"
"""Close reason while the server stops."""


class BadFrameError(ValidationError):
    """A WebSocket message does not follow LakeSync's protocol."""


def metric_label(code: int) -> str:
    """Return the metric label of a close code; `other` for codes that applications may define."""
    return str(code) if code in _STANDARD_CODES else "other"


def close_code_of(error: Exception) -> tuple[int, str]:
    """Return the close code and the reason of an error; the reason is the error's code, a colon and its message.

    The connection sends the first 123 bytes of the reason, which is the limit of WebSockets.
    """
    if not isinstance(error, LakeSyncError) or error.code == LakeSyncError.code:
        return CLOSE_FAILED, f"{LakeSyncError.code}: {INTERNAL}"
    return _close_code(error), f"{error.code}: {error.public_message}"


async def _handle_error(request: Request, error: Exception) -> Response:
    """Respond to an exception that a route raised."""
    return respond_to_error(error, RequestRecord.of(request))


async def _handle_invalid_parameters(request: Request, error: Exception) -> Response:
    """Respond to parameters that FastAPI rejects with a `ValidationError` that names each of them."""
    invalid = cast("RequestValidationError", error)
    faults = []
    for fault in invalid.errors():
        where, name = fault["loc"][0], fault["loc"][-1]
        if fault["type"] == "missing":
            faults.append(f"the {where} parameter {name!r} is missing; add it")
        else:
            faults.append(f"the {where} parameter {name!r} is {str(fault['input'])[:40]!r}: {fault['msg']}")
    return respond_to_error(ValidationError("; ".join(faults)), RequestRecord.of(request))


async def _handle_no_route(request: Request, error: Exception) -> Response:
    """Respond to a request with a path that no route has (404), or a method that its route lacks (405)."""
    rejection = cast("HTTPException", error)
    headers = {"Allow": ", ".join(_allowed_methods(request))} if rejection.status_code == 405 else rejection.headers
    record = RequestRecord.of(request)
    record.code = NotFoundError.code if rejection.status_code == 404 else ValidationError.code
    message = f"{rejection.detail}: {request.method} {request.url.path}; /openapi.json names every route"
    return http_error_response(rejection.status_code, message, record.code, record.request_id, headers)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods that a path supports; each method has a route of its own."""
    methods: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        if route.path is not None and route.methods and compile_path(route.path)[0].match(request.url.path):
            methods |= route.methods
    return sorted({*methods, "HEAD"} if "GET" in methods else methods)


def _with_short_message(rejection: Rejection) -> Rejection:
    """Return a delta's rejection with its message shortened, because a message may quote a whole value."""
    return msgspec.structs.replace(rejection, message=shortened(rejection.message))


def _response(status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def _close_code(error: LakeSyncError) -> int:
    """Return the close code for an error.

    All other errors close as a rejection, also backpressure, a rate limit and faults of the server's configuration:
    after this code, clients read the error's own code from the reason.
    """
    if isinstance(error, BadFrameError):
        return CLOSE_BAD_FRAME
    if isinstance(error, PayloadTooLargeError):
        return CLOSE_TOO_BIG
    if isinstance(error, TransientError) and not isinstance(error, BackpressureError | RateLimitedError):
        return CLOSE_TRY_LATER
    return CLOSE_REJECTED
