"""Which HTTP status each error has, and the one form in which errors are answered."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from lakesync.model import errors
from lakesync.model.errors import LakeSyncError, RefusedError, Rejection, TransientError

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
    errors.IntegrityError: 500,
    errors.CensusError: 500,
    errors.ConfigurationError: 500,
    errors.StagingVersionError: 500,
    LakeSyncError: 500,
}
"""A class that is missing here has the status of its nearest base."""

INTERNAL = "the gateway failed; the request id names the entry in its log"
MAX_MESSAGE_CHARS = 1000
"""A message names the value that is at fault, and a value may be as long as a body."""
RETRY_AFTER = 1.0
"""Seconds that a client is told to wait where the error does not know better."""


class ErrorBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What every error answer holds; `rejected` only where single deltas were refused."""

    error: str
    code: str
    request_id: str
    rejected: tuple[Rejection, ...] = ()


def status_of(kind: type[LakeSyncError]) -> int:
    """The HTTP status of a class of errors."""
    return next(STATUSES[base] for base in kind.__mro__ if base in STATUSES)


def error_response(error: Exception, request_id: str) -> Response:
    """The answer to an error; of one that was not raised on purpose it tells nothing."""
    if not isinstance(error, LakeSyncError) or error.code == LakeSyncError.code:
        return _response(500, ErrorBody(INTERNAL, LakeSyncError.code, request_id))
    status = status_of(type(error))
    rejected = tuple(map(_bounded, error.rejected)) if isinstance(error, RefusedError) else ()
    headers = {}
    if status in (429, 503):
        known = error.retry_after if isinstance(error, TransientError) else None
        headers["Retry-After"] = str(math.ceil(RETRY_AFTER if known is None else known))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _response(status, ErrorBody(shortened(str(error)), error.code, request_id, rejected), headers)


def http_error_response(
    status: int, message: str, code: str, request_id: str, headers: Mapping[str, str] | None
) -> Response:
    """The answer where no route took the request: unknown path or method."""
    return _response(status, ErrorBody(shortened(message), code, request_id), headers)


def _bounded(rejection: Rejection) -> Rejection:
    if len(rejection.message) <= MAX_MESSAGE_CHARS:
        return rejection
    return msgspec.structs.replace(rejection, message=shortened(rejection.message))


def shortened(message: str) -> str:
    """The message with its middle left out where it is too long: what to do stands at its end."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    half = MAX_MESSAGE_CHARS // 2
    return f"{message[:half]} … {message[-half:]}"


def _response(status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")
