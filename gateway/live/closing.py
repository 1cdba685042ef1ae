"""Why a connection ends: an error as a close code and a reason."""

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
BAD_FRAME = 1002
REFUSED = 1008
TOO_BIG = 1009
FAILED = 1011
TRY_LATER = 1013
_KNOWN = frozenset({*range(1000, 1004), *range(1005, 1016)})
STOPPING = "the gateway is stopping: connect again"


class BadFrameError(ValidationError):
    """What came is no frame of the protocol."""


def label_of(code: int) -> str:
    """Return the metric label of a connection's end. A client may close with any of 2,000 codes: those are one."""
    return str(code) if code in _KNOWN else "other"


def close_of(error: Exception) -> tuple[int, str]:
    """The close code and the reason: the error's code, a colon, what is wrong; cut where it is too long."""
    if not isinstance(error, LakeSyncError) or error.code == LakeSyncError.code:
        return FAILED, f"{LakeSyncError.code}: {INTERNAL}"
    return _code_of(error), f"{error.code}: {error}"


def _code_of(error: LakeSyncError) -> int:
    if isinstance(error, BadFrameError):
        return BAD_FRAME
    if isinstance(error, PayloadTooLargeError):
        return TOO_BIG
    if isinstance(error, TransientError) and not isinstance(error, BackpressureError | RateLimitedError):
        return TRY_LATER
    return REFUSED
