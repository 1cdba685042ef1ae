"""Carries errors from Spark tasks to the driver as rows of their results, because Spark would carry only their text.

Modules whose tasks raise `LakeSyncError` call it in the task and in the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakesync.model import errors as exceptions
from lakesync.model.errors import LakeSyncError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Failure(msgspec.Struct, frozen=True):
    """A task's error, in a form that can be sent as JSON."""

    kind: str
    """Name of its class in `lakesync.model.errors`."""
    message: str
    retry_after: float | None = None
    """Seconds after which a retry may succeed; None if the error does not say."""

    @classmethod
    def of(cls, error: LakeSyncError) -> Failure:
        """Convert an error. A connector's own class becomes its nearest base in `lakesync.model.errors`."""
        kind = next(each.__name__ for each in type(error).__mro__ if hasattr(exceptions, each.__name__))
        return cls(kind, str(error), error.retry_after if isinstance(error, TransientError) else None)

    def error(self) -> LakeSyncError:
        """Return the error, as an instance of its class in `lakesync.model.errors`."""
        kind: type[LakeSyncError] = getattr(exceptions, self.kind)
        if issubclass(kind, TransientError):
            return kind(self.message, retry_after=self.retry_after)
        return kind(self.message)


def failure_text(error: LakeSyncError) -> str:
    """Convert an error to the text that a task yields in a row."""
    return msgspec.json.encode(Failure.of(error)).decode()


def raise_failure(texts: Iterable[str | None]) -> None:
    """Raise the first error among the results of tasks, if there is one.

    Args:
        texts: results of `failure_text`; None for a row without an error.

    Raises:
        LakeSyncError: a task failed.
    """
    for text in texts:
        if text is not None:
            raise msgspec.json.decode(text, type=Failure).error()
