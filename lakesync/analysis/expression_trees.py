"""Builds trees of expressions and plans that are not deep, for `lakesync.analysis.scans` and `lakehouse`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeVar

Part = TypeVar("Part")


def combine(operation: Callable[[Part, Part], Part], parts: Iterable[Part]) -> Part:
    """Combine parts pair by pair, in their order, so that few of them are nested.

    pyiceberg evaluates expressions recursively, so a chain of 500 is too deep. Spark Connect's plans are protobuf
    messages, of which 100 may be nested; each part of a chain nests two.

    Args:
        operation: combines two parts; associative.
        parts: at least one.
    """
    combined = list(parts)
    while len(combined) > 1:
        combined = [reduce(operation, combined[start : start + 2]) for start in range(0, len(combined), 2)]
    return combined[0]
