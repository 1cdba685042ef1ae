"""Maps errors of Spark and of the Iceberg catalogue to `LakeUnavailableError`, by the decorator `lake_errors`.

The functions of `lakehouse` that use Spark have the decorator. So callers can distinguish a lost server or catalogue,
after which they may repeat the call, from a query that fails each time.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import grpc
from pyspark.errors import PySparkException

from lakesync.model.errors import LakeSyncError, LakeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_LOST = ("RETRIES_EXCEEDED", "INVALID_HANDLE.", "SESSION_CHANGED", "NO_ACTIVE_SESSION", "UNAVAILABLE")
"""Spark's error conditions if the server, or the session on it, is lost."""

_CATALOGUE = (
    "org.apache.iceberg.jdbc.UncheckedSQLException",
    "org.apache.iceberg.exceptions.CommitStateUnknownException",
    "org.apache.iceberg.exceptions.RESTException",
    "org.apache.iceberg.exceptions.ServiceFailureException",
    "org.apache.iceberg.exceptions.ServiceUnavailableException",
)
"""Iceberg's exceptions if the catalogue does not answer, or if it is unknown whether it has committed."""

_CLOCK_SET_BACK = (
    "Expected sorted snapshot log entries",
    "Expected sorted previous metadata",
    "Invalid update timestamp",
)
"""Parts of Iceberg's messages if a commit's time is more than a minute before that of the table's previous one."""


def lake_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to raise `LakeUnavailableError` if Spark, its session or the catalogue was lost.

    It also does so if Iceberg rejects a commit because the clock was set back.

    Other errors are raised unchanged.
    """

    @wraps(function)
    def mapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except LakeSyncError:
            raise
        except Exception as error:
            if is_lost(error):
                raise LakeUnavailableError(
                    f"the connection to Spark was lost during {function.__name__} ({brief(error)}); "
                    "run it again with a new session, which is safe"
                ) from error
            if is_unanswered(error):
                raise LakeUnavailableError(
                    f"the catalogue did not answer during {function.__name__}, or its response to a commit was lost "
                    f"({brief(error)}); run it again, which is safe: it reads the tables first"
                ) from error
            if any(part in str(error) for part in _CLOCK_SET_BACK):
                raise LakeUnavailableError(f"{function.__name__} was not committed ({brief(error)})") from error
            raise

    return mapped


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that Spark's server or the session is lost, not that a query failed."""
    if isinstance(error, grpc.RpcError):
        return True
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    text = f"{condition} {error}"
    return any(lost_condition in text for lost_condition in _LOST)


def is_unanswered(error: BaseException) -> bool:
    """Return whether an error of Spark or pyiceberg means that the catalogue did not answer."""
    if isinstance(error, PySparkException):
        return any(name in str(error) for name in _CATALOGUE)
    from pyiceberg.exceptions import CommitStateUnknownException, ServerError, ServiceUnavailableError
    from requests import ConnectionError as NoConnection
    from requests import Timeout
    from sqlalchemy.exc import DBAPIError

    of_iceberg = (CommitStateUnknownException, ServerError, ServiceUnavailableError)
    return isinstance(error, (*of_iceberg, NoConnection, Timeout, DBAPIError))


def brief(error: BaseException) -> str:
    """Return an error's type and the first line of its message, without the JVM's stack trace.

    A message of Iceberg that does not name the cause, a clock that was set back, is completed.
    """
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if any(part in text for part in _CLOCK_SET_BACK):
        text += (
            " The clock was set back: Iceberg rejects commits while it is more than a minute behind the table's "
            "previous commit. Correct the clock, or wait until it has caught up"
        )
    return text
