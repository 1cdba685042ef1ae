"""Errors of tasks on their way to the step that reports them: Spark itself would carry only their text."""

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
        """The failure of an error; of a class of a connector's own, its nearest base in `lakesync.model.errors`."""
        kind = next(each.__name__ for each in type(error).__mro__ if hasattr(exceptions, each.__name__))
        return cls(kind, str(error), error.retry_after if isinstance(error, TransientError) else None)

    def error(self) -> LakeSyncError:
        """The error again, as what it was."""
        kind: type[LakeSyncError] = getattr(exceptions, self.kind)
        if issubclass(kind, TransientError):
            return kind(self.message, retry_after=self.retry_after)
        return kind(self.message)


def failure_text(error: LakeSyncError) -> str:
    """An error as a task reports it in a row."""
    return msgspec.json.encode(Failure.of(error)).decode()


def raise_failure(texts: Iterable[str | None]) -> None:
    """Raise the first error that tasks reported as `failure_text`, if there is one, as what it was."""
    for text in texts:
        if text is not None:
            raise msgspec.json.decode(text, type=Failure).error()
