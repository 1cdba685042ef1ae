"""Carries errors of tasks to the driver as rows. Spark itself would carry only their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakesync.model import errors as exceptions
from lakesync.model.errors import LakeSyncError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Failure(msgspec.Struct, frozen=True):
    """A task's error."""

    kind: str
    message: str
    retry_after: float | None = None

    @classmethod
    def of(cls, error: LakeSyncError) -> Failure:
        """Return the failure of an error. A connector's own class becomes its base in `lakesync.model.errors`."""
        kind = next(each.__name__ for each in type(error).__mro__ if hasattr(exceptions, each.__name__))
        return cls(kind, str(error), error.retry_after if isinstance(error, TransientError) else None)

    def error(self) -> LakeSyncError:
        """Return the error, with its original class."""
        kind: type[LakeSyncError] = getattr(exceptions, self.kind)
        if issubclass(kind, TransientError):
            return kind(self.message, retry_after=self.retry_after)
        return kind(self.message)


def failure_text(error: LakeSyncError) -> str:
    """Return an error as the text that a task reports in a row."""
    return msgspec.json.encode(Failure.of(error)).decode()


def raise_failure(texts: Iterable[str | None]) -> None:
    """Raise the first error that tasks reported as `failure_text`, with its original class, if there is one."""
    for text in texts:
        if text is not None:
            raise msgspec.json.decode(text, type=Failure).error()
