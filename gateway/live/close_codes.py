"""Maps errors to the close codes and reasons of WebSocket connections. The modules of `gateway.live` call it.

`docs/websocket.md` lists what a client does after each code.
"""

from __future__ import annotations

from gateway.errors import INTERNAL
from lakesync.model.errors import (
    BackpressureError,
    LakeSyncError,
    PayloadTooLargeError,
    RateLimitedError,
    TransientError,
    ValidationError,
)

GOING_AWAY = 1001
"""The server stops."""
BAD_FRAME = 1002
"""A frame does not follow the protocol."""
REJECTED = 1008
"""The request is invalid or not permitted; repeating it is of no use."""
TOO_BIG = 1009
"""A message exceeds a limit of size."""
FAILED = 1011
"""An unexpected error of the server."""
TRY_LATER = 1013
"""The server lacks something at present, such as its staging store."""
_STANDARD_CODES = frozenset({*range(1000, 1004), *range(1005, 1016)})
"""Close codes that RFC 6455 and IANA define."""
STOPPING = "the gateway is stopping: connect again"
"""Close reason while the server stops."""


class BadFrameError(ValidationError):
    """A frame does not follow LakeSync's protocol."""


def metric_label(code: int) -> str:
    """Return the metric label of a close code; `other` for codes that applications may define."""
    return str(code) if code in _STANDARD_CODES else "other"


def close_code_of(error: Exception) -> tuple[int, str]:
    """Return the close code and the reason of an error; the reason is the error's code, a colon and its message."""
    if not isinstance(error, LakeSyncError) or error.code == LakeSyncError.code:
        return FAILED, f"{LakeSyncError.code}: {INTERNAL}"
    return _code_of(error), f"{error.code}: {error}"


def _code_of(error: LakeSyncError) -> int:
    """Return the WebSocket close code for an error, which tells the client whether to connect again."""
    if isinstance(error, BadFrameError):
        return BAD_FRAME
    if isinstance(error, PayloadTooLargeError):
        return TOO_BIG
    if isinstance(error, TransientError) and not isinstance(error, BackpressureError | RateLimitedError):
        return TRY_LATER
    return REJECTED
