"""Who is concerned by which bucket keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from lakesync.rules.keys import prefixes_of

T = TypeVar("T", bound=Hashable)


class Interests(Generic[T]):
    """An index of interests: finding who is concerned costs what is found."""

    def __init__(self) -> None:
        self._known: dict[T, tuple[frozenset[str], frozenset[str]]] = {}
        self._by_bucket: dict[str, set[T]] = defaultdict(set)
        self._by_prefix: dict[str, set[T]] = defaultdict(set)

    def put(self, who: T, buckets: frozenset[str], prefixes: frozenset[str]) -> None:
        """Note which bucket keys concern somebody from now on: these, and those that begin so."""
        if self._known.get(who) == (buckets, prefixes):
            return
        self.forget(who)
        self._known[who] = (buckets, prefixes)
        for bucket in buckets:
            self._by_bucket[bucket].add(who)
        for prefix in prefixes:
            self._by_prefix[prefix].add(who)

    def forget(self, who: T) -> None:
        """Nothing concerns them any more."""
        buckets, prefixes = self._known.pop(who, (frozenset(), frozenset()))
        for bucket in buckets:
            _drop(self._by_bucket, bucket, who)
        for prefix in prefixes:
            _drop(self._by_prefix, prefix, who)

    def clear(self) -> None:
        """Nothing is known of anybody."""
        self._known.clear()
        self._by_bucket.clear()
        self._by_prefix.clear()

    def concerned(self, buckets: Collection[str]) -> set[T]:
        """Who is concerned by any of these bucket keys."""
        found: set[T] = set()
        for bucket in buckets:
            found |= self._by_bucket.get(bucket, set())
            for prefix in prefixes_of(bucket) if self._by_prefix else ():
                found |= self._by_prefix.get(prefix, set())
        return found


def _drop(index: dict[str, set[T]], key: str, who: T) -> None:
    index[key].discard(who)
    if not index[key]:
        del index[key]
