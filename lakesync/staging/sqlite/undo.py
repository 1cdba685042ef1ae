"""Undoes changes of dictionaries and lists in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Undo:
    """A stack of functions that undo changes, run last first."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def mark(self) -> int:
        """Return the current position, for `take_back`."""
        return len(self._steps)

    def add(self, step: Callable[[], object]) -> None:
        """Add a function that undoes the current change."""
        self._steps.append(step)

    def update(self, held: dict[K, V], new: Mapping[K, V]) -> None:
        """Update a dictionary whose values are never None, and add how to undo that.

        `new` must not be changed afterwards.
        """
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
        """Undo everything since the mark."""
        while len(self._steps) > mark:
            self._steps.pop()()

    def forget(self) -> None:
        """Drop all functions: nothing can be undone any more."""
        self._steps.clear()
