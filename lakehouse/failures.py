"""Errors of tasks on their way to the step that reports them: Spark itself would carry only their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakesync import exceptions
from lakesync.exceptions import LakeSyncError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Failure(msgspec.Struct, frozen=True):
    """A task's error."""

    kind: str
    message: str
    retry_after: float | None = None

    @classmethod
    def of(cls, error: LakeSyncError) -> Failure:
        """The failure of an error; of a class of a connector's own, its nearest base in `lakesync.exceptions`."""
        kind = next(each.__name__ for each in type(error).__mro__ if hasattr(exceptions, each.__name__))
        return cls(kind, str(error), error.retry_after if isinstance(error, TransientError) else None)

    def error(self) -> LakeSyncError:
        """The error again, as what it was."""
        kind: type[LakeSyncError] = getattr(exceptions, self.kind)
        if issubclass(kind, TransientError):
            return kind(self.message, retry_after=self.retry_after)
        return kind(self.message)


def raise_failure(told: Iterable[str | None]) -> None:
    """Raise the first error that tasks told, if there is one, as what it was."""
    for text in told:
        if text is not None:
            raise msgspec.json.decode(text, type=Failure).error()
