"""What was read of objects, each named so that it never changes, so that a walk over them reads each once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

MOST_DELTAS = 100_000


class Recent:
    """The deltas of the objects read last, so many at most, a larger object apart. Safe between threads."""

    def __init__(self, most: int = MOST_DELTAS) -> None:
        self._most = most
        self._held: OrderedDict[str, pa.Table] = OrderedDict()
        self._deltas = 0
        self._lock = threading.Lock()

    def get(self, key: str, read: Callable[[str], pa.Table]) -> pa.Table:
        """The deltas of an object, by `read` where they are not at hand."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        found = read(key)
        with self._lock:
            if key not in self._held:
                self._held[key] = found
                self._deltas += len(found)
            while self._deltas > self._most and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self._deltas -= len(dropped)
        return found
