"""Divides sequences and streams into parts, so that one statement, commit or message has few enough items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield parts of a sequence with at most `size` items each.

    Args:
        items: the sequence.
        size: the most items of a part.
    """
    for start in range(0, len(items), size):
        yield items[start : start + size]


def grouped(items: Iterable[T], size_of: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Yield items in lists. A list ends with the item by which its size reaches the limit.

    Args:
        items: the items.
        size_of: returns an item's size, in the unit of the limit.
        limit: the size of a list, which the last item may exceed.
    """
    group: list[T] = []
    size = 0
    for item in items:
        group.append(item)
        size += size_of(item)
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group
