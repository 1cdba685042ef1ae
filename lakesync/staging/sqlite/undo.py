"""Taking back what was done in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Undo:
    """How to take back what was done since a mark: steps, run last first."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def mark(self) -> int:
        """The place to come back to."""
        return len(self._steps)

    def add(self, step: Callable[[], object]) -> None:
        """Note how to take back what is done now."""
        self._steps.append(step)

    def update(self, held: dict[K, V], new: Mapping[K, V]) -> None:
        """Update a dictionary without None in it, and note how to take that back, for which `new` stays as it is."""
        before = list(map(held.get, new))
        held.update(new)

        def restore() -> None:
            for key, value in zip(new, before, strict=True):
                if value is None:
                    del held[key]
                else:
                    held[key] = value

        self._steps.append(restore)

    def take_back(self, mark: int) -> None:
        """Take back everything since the mark."""
        while len(self._steps) > mark:
            self._steps.pop()()

    def forget(self) -> None:
        """Nothing is taken back any more."""
        self._steps.clear()
