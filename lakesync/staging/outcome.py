"""The result of one job of a group commit, kept until the group is durable. Both stores use it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """A future and the result or error that completes it."""

    future: Future[Any]
    result: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        """Complete the future."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)
