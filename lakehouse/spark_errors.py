"""Errors of Spark and the catalogue in the terms of `lakesync.model.errors`, mapped where the lake's functions end."""

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
"""Conditions in which the server, or this session on it, is gone."""

_CATALOGUE = (
    "org.apache.iceberg.jdbc.UncheckedSQLException",
    "org.apache.iceberg.exceptions.CommitStateUnknownException",
    "org.apache.iceberg.exceptions.RESTException",
    "org.apache.iceberg.exceptions.ServiceFailureException",
    "org.apache.iceberg.exceptions.ServiceUnavailableException",
)
"""What Iceberg says where the catalogue does not answer, or not so that it is known whether it has committed."""


def lake_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Raise `LakeUnavailableError` where Spark, its session or the catalogue was lost; other errors pass."""

    @wraps(function)
    def mapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except LakeSyncError:
            raise
        except Exception as error:
            if is_lost(error):
                raise LakeUnavailableError(
                    f"Spark was lost in the middle of {function.__name__} ({brief(error)}); "
                    "run it again with a new session, which is safe"
                ) from error
            if is_unanswered(error):
                raise LakeUnavailableError(
                    f"the catalogue was lost in the middle of {function.__name__}, or its answer to a commit "
                    f"({brief(error)}); run it again, which is safe: it looks at what the tables hold"
                ) from error
            raise

    return mapped


def is_lost(error: BaseException) -> bool:
    """Whether an error says that the server or the session is gone, rather than that a query failed."""
    if isinstance(error, grpc.RpcError):
        return True
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    text = f"{condition} {error}"
    return any(sign in text for sign in _LOST)


def is_unanswered(error: BaseException) -> bool:
    """Whether an error says that the catalogue did not answer: Spark, or pyiceberg in this process."""
    if isinstance(error, PySparkException):
        return any(name in str(error) for name in _CATALOGUE)
    from pyiceberg.exceptions import CommitStateUnknownException, ServerError, ServiceUnavailableError
    from requests import ConnectionError as NoConnection
    from requests import Timeout
    from sqlalchemy.exc import DBAPIError

    own = (CommitStateUnknownException, ServerError, ServiceUnavailableError)
    return isinstance(error, (*own, NoConnection, Timeout, DBAPIError))


def brief(error: BaseException) -> str:
    """A driver's error without its stack trace."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
