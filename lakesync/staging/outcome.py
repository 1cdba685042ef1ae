"""How a unit of work ended, kept until its group is durable."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What a future ends with."""

    future: Future[Any]
    result: Any = None
    error: BaseException | None = None

    def tell(self) -> None:
        """End the future."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)
