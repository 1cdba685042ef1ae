"""Errors that only a client raises, and `error_from_code`, by which transports make exceptions of a gateway's errors.

A transient error may pass by itself: the client repeats the request. A terminal one does not: the app or its user has
to change something.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakesync.model.errors import LakeSyncError, RejectedError, Rejection, TerminalError, TransientError


class UnreachableError(TransientError):
    """No complete response arrived; the gateway may or may not have processed the request."""

    code = "UNREACHABLE"


class DbError(TransientError):
    """The client's database cannot be used now: another program has locked it, or the disk is full."""

    code = "DB_ERROR"


class TableError(TerminalError):
    """A synced table was altered: it lost a column or its triggers, or it rejects what other clients wrote."""

    code = "TABLE_ERROR"


class InternalError(TransientError):
    """An internal error of the gateway. The client sends its request again."""

    code = "INTERNAL_ERROR"


def error_from_code(
    code: str, message: str, rejected: tuple[Rejection, ...] = (), retry_after: float | None = None
) -> LakeSyncError:
    """Return the exception for an error that a gateway has sent: an instance of the class that has its code.

    Args:
        code: the error code, such as `AUTH_ERROR`. An unknown code gives a terminal error with this code.
        message: the error message.
        rejected: the rejected deltas, if the request was a push.
        retry_after: seconds after which the gateway asks for a retry; None if it does not.
    """
    kind = _CLASSES.get(code)
    if kind is None:
        kind = type("UnknownError", (TerminalError,), {"code": code, "__doc__": f"The gateway's {code}."})
    if issubclass(kind, RejectedError):
        return kind(message, rejected)
    if issubclass(kind, TransientError):
        return kind(message, retry_after=retry_after)
    return kind(message)


def _with_subclasses(kind: type[LakeSyncError]) -> Iterator[type[LakeSyncError]]:
    """Yield a class and all its subclasses, each base before its subclasses."""
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)


_CLASSES: dict[str, type[LakeSyncError]] = {
    **{kind.code: kind for kind in reversed(list(_with_subclasses(LakeSyncError)))},
    InternalError.code: InternalError,  # instead of `LakeSyncError`, whose code this is by default
}
"""Error classes by code. Reversed, because of classes with one code the base counts: the wire has only the code."""
