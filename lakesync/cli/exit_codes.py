"""The exit code of each error, and the report of an error on stderr.

The group `lakesync` (`LazyGroup` in `lakesync.cli.app`) runs every command, and calls `report_error` for an exception
that a command raises. Commands that find a problem, or print only a part, exit with one of the codes themselves.
"""

from __future__ import annotations

import errno
import json
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.model.errors import LakeSyncError

T = TypeVar("T")


class ExitCode(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    """The command failed, or a check found a problem."""
    USAGE = 2
    """An option, argument or setting is invalid."""
    UNREACHABLE = 3
    """A gateway, store, lake or backend does not answer or is overloaded. A retry may succeed."""
    AUTH = 4
    """There is no token, it is not valid, or it does not permit the request."""
    INVALID = 5
    """The input does not have the documented form, or conflicts with existing data."""
    PARTIAL = 6
    """A part of the work or of the output is missing; the missing part is reported."""


CODES: dict[str, ExitCode] = {
    "ConfigurationError": ExitCode.USAGE,
    "UnreachableError": ExitCode.UNREACHABLE,
    "DagsterUnreachableError": ExitCode.UNREACHABLE,
    "StagingUnavailableError": ExitCode.UNREACHABLE,
    "LakeUnavailableError": ExitCode.UNREACHABLE,
    "AdapterError": ExitCode.UNREACHABLE,
    "RateLimitedError": ExitCode.UNREACHABLE,
    "BackpressureError": ExitCode.UNREACHABLE,
    "AuthError": ExitCode.AUTH,
    "ForbiddenError": ExitCode.AUTH,
    "ValidationError": ExitCode.INVALID,
    "SchemaError": ExitCode.INVALID,
    "ClockDriftError": ExitCode.INVALID,
    "ResyncRequiredError": ExitCode.INVALID,
    "PartialError": ExitCode.PARTIAL,
    "LakeSyncError": ExitCode.FAILED,
}
"""Name of an error class → exit code. A class that is not listed has the code of its nearest base class.

Names, because importing the classes would slow down every command."""

REMEDIES: dict[str, str] = {
    "UnreachableError": "start a gateway with `lakesync up` or `lakesync gateway`, or name another one with --url",
    "DagsterUnreachableError": "start Dagster with `lakesync up` or `lakesync pipeline`, or set [dagster] url",
    "AuthError": "set LAKESYNC_TOKEN or give --token-file; `lakesync token create` creates a token, with the secret of "
    "these settings: if the gateway has another LAKESYNC_JWT_SECRET, set it here too",
    "ForbiddenError": "create an admin's token: `lakesync token create --gateway ID --client ME --role admin`",
    "BackpressureError": "flush the backlog with `lakesync flush`; `lakesync status` shows it",
    "LakeUnavailableError": "check the catalogue and Spark with `lakesync doctor`",
    "StagingUnavailableError": "check the store with `lakesync doctor`",
}
"""Name of an error class → a suggestion that is printed after the message.

It is not in the message itself, because the gateway sends the same message to clients that do not have this CLI."""


EXTRAS: dict[str, str] = {
    **dict.fromkeys(("pyiceberg", "duckdb", "pyarrow", "sqlglot", "sqlalchemy"), "query"),
    "psycopg": "postgres",
    "pymysql": "mysql",
}
"""Package → the extra of `lakesync` that installs it."""


def code_of(kind: type[BaseException]) -> ExitCode | None:
    """Return the exit code of a class of exceptions; None for an unexpected exception."""
    return _nearest(CODES, kind)


def remedy_of(kind: type[BaseException]) -> str | None:
    """Return the suggestion for a class of exceptions; None without one."""
    return _nearest(REMEDIES, kind)


def report_error(error: Exception, *, as_json: bool) -> ExitCode | None:
    """Report an exception on stderr and return its exit code.

    Args:
        error: the exception.
        as_json: whether to report it as one line of JSON.

    Returns:
        The exit code. None without a report, for an unexpected exception, which should end with its traceback, and for
        a closed pipe, which typer handles.
    """
    missing_module = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    extra = EXTRAS.get(missing_module.partition(".")[0])
    if extra is not None:
        why = f"the package {missing_module!r} is not installed; run pip install 'lakesync[{extra}]'"
        return _report(why, "PACKAGE_MISSING", ExitCode.FAILED, as_json=as_json)
    code = code_of(type(error))
    if code is None and isinstance(error, OSError) and str(error) and error.errno != errno.EPIPE:
        where = f"{error.filename}: " if error.filename is not None else ""
        reason = error.strerror or str(error)  # pyarrow's errors have no strerror
        return _report(f"{where}{reason}", "OS_ERROR", ExitCode.FAILED, as_json=as_json)
    if code is None:
        return None
    known: LakeSyncError = error  # type: ignore[assignment] # it has an exit code
    return _report(str(error), known.code, code, remedy_of(type(error)), as_json=as_json)


def exit_if_incomplete(gaps: Sequence[str], *, as_json: bool) -> None:
    """Report on stderr which parts of the output are missing.

    Args:
        gaps: what is missing, and the cause, of each part.
        as_json: whether to report each as one line of JSON.

    Raises:
        typer.Exit: with PARTIAL, if a part is missing.
    """
    for gap in gaps:
        _report(gap, "PARTIAL", ExitCode.PARTIAL, as_json=as_json, prefix="incomplete")
    if gaps:
        raise typer.Exit(ExitCode.PARTIAL)


def report_usage(message: str) -> ExitCode:
    """Report a usage error on stderr as one line of JSON, and return its exit code; typer reports it without --json."""
    return _report(message, "USAGE", ExitCode.USAGE, as_json=True)


def _report(
    message: str, code: str, exit_code: ExitCode, remedy: str | None = None, *, as_json: bool, prefix: str = "error"
) -> ExitCode:
    """Print a report on stderr, and return `exit_code`; `code` names the error in the JSON."""
    if as_json:
        report = {"error": message, "code": code, "exitCode": int(exit_code), **({"remedy": remedy} if remedy else {})}
        print(json.dumps(report), file=sys.stderr)
    else:
        print(f"{prefix}: {message}", file=sys.stderr)
        if remedy:
            print(f"  try: {remedy}", file=sys.stderr)
    return exit_code


def _nearest(table: dict[str, T], kind: type[BaseException]) -> T | None:
    """Return the entry for a class, else for its nearest base class that has one; None without one."""
    return next((table[base.__name__] for base in kind.__mro__ if base.__name__ in table), None)
