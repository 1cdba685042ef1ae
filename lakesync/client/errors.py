"""Errors that only a client knows; they stand in the one tree of `lakesync.model.errors`."""

from __future__ import annotations

from collections.abc import Iterator

from lakesync.model.errors import LakeSyncError, RefusedError, Rejection, TerminalError, TransientError


class UnreachableError(TransientError):
    """No answer came, or half of one: what was asked may or may not have been done."""

    code = "UNREACHABLE"


class DbError(TransientError):
    """The client's own database cannot be used now: another program holds it, or the disk is full."""

    code = "DB_ERROR"


class TableError(TerminalError):
    """A synced table of the app's is not what it was: it has lost a column, or refuses what others wrote."""

    code = "TABLE_ERROR"


def answered(
    code: str, message: str, rejected: tuple[Rejection, ...] = (), retry_after: float | None = None
) -> LakeSyncError:
    """The error that a gateway's answer names, as the class that has its code.

    A code that this version does not know makes a terminal error with that code.
    """
    kind = _KINDS.get(code)
    if kind is None:
        kind = type("UnknownError", (TerminalError,), {"code": code, "__doc__": f"The gateway's {code}."})
    if issubclass(kind, RefusedError):
        return kind(message, rejected)
    if issubclass(kind, TransientError):
        return kind(message, retry_after=retry_after)
    return kind(message)


def _all(kind: type[LakeSyncError]) -> Iterator[type[LakeSyncError]]:
    """The classes of the tree, bases before what is derived from them."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _all(derived)


_KINDS: dict[str, type[LakeSyncError]] = {}
for _kind in _all(LakeSyncError):
    _KINDS.setdefault(_kind.code, _kind)
_KINDS["INTERNAL_ERROR"] = type("InternalError", (TransientError,), {"__doc__": "A fault of the gateway."})
