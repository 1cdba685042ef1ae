"""How a command ends: the exit codes, which error has which, and what is said of it. The one place for both."""

from __future__ import annotations

import errno
import json
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.model.errors import LakeSyncError

T = TypeVar("T")


class ExitCode(IntEnum):
    """What a script is told."""

    OK = 0
    FAILED = 1
    """It was tried, and did not work; or what was looked for is not so."""
    USAGE = 2
    """Options, arguments or settings cannot be used."""
    UNREACHABLE = 3
    """A gateway, a store, the lake or a backend does not answer, or takes nothing now: the same may work later."""
    AUTH = 4
    """No token, one that is not good, or one that does not allow this."""
    INVALID = 5
    """What was handed over is not of the documented form, or contradicts what is there."""
    PARTIAL = 6
    """Some of it was done, or answered, and some was not; what was not is named."""


CODES: dict[str, ExitCode] = {
    "ConfigurationError": ExitCode.USAGE,
    "UnreachableError": ExitCode.UNREACHABLE,
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
"""By the name of the class, as importing them costs time; one that is missing has the code of its nearest base."""

REMEDIES: dict[str, str] = {
    "UnreachableError": "start it (`lakesync up`, `lakesync gateway`), or name another with --url",
    "AuthError": "set LAKESYNC_TOKEN or give --token-file; `lakesync token create` makes one",
    "ForbiddenError": "an admin's token: `lakesync token create --gateway ID --client ME --role admin`",
    "BackpressureError": "see what waits: `lakesync status`; carry it to the lake: `lakesync flush`",
    "LakeUnavailableError": "`lakesync doctor` looks at catalogue and Spark",
    "StagingUnavailableError": "`lakesync doctor` looks at the store",
}
"""What to try next, where the message itself cannot know."""


EXTRAS: dict[str, str] = {
    **dict.fromkeys(("pyiceberg", "duckdb", "pyarrow", "sqlglot", "sqlalchemy"), "query"),
    "psycopg": "postgres",
    "pymysql": "mysql",
}
"""Package → the extra that brings it."""


def code_of(kind: type[BaseException]) -> ExitCode | None:
    """The exit code of a class of errors; None for one that was not raised on purpose."""
    return next(_of(CODES, kind), None)


def told(error: Exception, *, as_json: bool) -> ExitCode | None:
    """Say on stderr what went wrong, in one line of JSON where JSON was asked for; its exit code.

    None, and nothing is said, where the error was raised neither on purpose nor by this machine, as for a full disk:
    then its traceback is wanted. None too for a reader that went away, of which typer takes care.
    """
    extra = EXTRAS.get((error.name or "").partition(".")[0]) if isinstance(error, ModuleNotFoundError) else None
    if extra is not None:
        why = f"this needs a package that is not here: pip install 'lakesync[{extra}]'"
        return _say(why, "PACKAGE_MISSING", ExitCode.FAILED, as_json=as_json)
    code = code_of(type(error))
    if code is None and isinstance(error, OSError) and error.strerror and error.errno != errno.EPIPE:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _say(f"{where}{error.strerror}", "OS_ERROR", ExitCode.FAILED, as_json=as_json)
    if code is None:
        return None
    remedy = next(_of(REMEDIES, type(error)), None)
    known: LakeSyncError = error  # type: ignore[assignment] # it has an exit code
    return _say(str(error), known.code, code, remedy, as_json=as_json)


def unanswered(why: str, *, as_json: bool) -> ExitCode:
    """Say on stderr what is not known of what was asked."""
    return _say(why, "PARTIAL", ExitCode.PARTIAL, as_json=as_json, begins="not known")


def misused(why: str) -> ExitCode:
    """Say on stderr, in one line of JSON, that options or arguments cannot be used."""
    return _say(why, "USAGE", ExitCode.USAGE, as_json=True)


def _say(
    why: str, code: str, ends: ExitCode, remedy: str | None = None, *, as_json: bool, begins: str = "error"
) -> ExitCode:
    if as_json:
        said = {"error": why, "code": code, "exitCode": int(ends), **({"remedy": remedy} if remedy else {})}
        print(json.dumps(said), file=sys.stderr)
    else:
        print(f"{begins}: {why}", file=sys.stderr)
        if remedy:
            print(f"  try: {remedy}", file=sys.stderr)
    return ends


def _of(table: dict[str, T], kind: type[BaseException]) -> Iterator[T]:
    return (table[base.__name__] for base in kind.__mro__ if base.__name__ in table)
