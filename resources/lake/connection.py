"""Spark's errors in the terms of `lakesync.exceptions`, mapped where the lake's functions end."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import grpc
from pyspark.errors import PySparkException

from lakesync.exceptions import LakeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_LOST = ("RETRIES_EXCEEDED", "INVALID_HANDLE.", "SESSION_CHANGED", "NO_ACTIVE_SESSION", "UNAVAILABLE")
"""Conditions in which the server, or this session on it, is gone."""


def lake_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Raise `LakeUnavailableError` where the server or the session was lost; other errors pass."""

    @wraps(function)
    def mapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (PySparkException, grpc.RpcError) as error:
            if is_lost(error):
                raise LakeUnavailableError(
                    f"Spark was lost in the middle of {function.__name__} ({brief(error)}); "
                    "run it again with a new session, which is safe"
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


def brief(error: BaseException) -> str:
    """A driver's error without its stack trace."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
