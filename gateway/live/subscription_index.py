"""An index of WebSocket connections by the bucket keys whose changes they get.

Each gateway's `Channel` has one. When a commit changes rows under some bucket keys, the channel looks up which
connections it concerns. A bucket key names a bucket of the sync rules with the claims (fields of tokens) that may see
it. Some keys cannot be computed from a client's claims before a row has them; for these, a subscription has prefixes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from lakesync.rules.keys import prefixes_of

T = TypeVar("T", bound=Hashable)


class SubscriptionIndex(Generic[T]):
    """Maps bucket keys to subscribers. The cost of a lookup grows with its result, not with all subscribers."""

    def __init__(self) -> None:
        self._subscriptions: dict[T, tuple[frozenset[str], frozenset[str]]] = {}
        """Subscriber → its bucket keys and its prefixes."""
        self._by_bucket: dict[str, set[T]] = defaultdict(set)
        self._by_prefix: dict[str, set[T]] = defaultdict(set)

    def subscribe(self, subscriber: T, buckets: frozenset[str], prefixes: frozenset[str]) -> None:
        """Replace the subscription of a subscriber.

        Args:
            subscriber: the subscriber.
            buckets: the bucket keys that concern it.
            prefixes: prefixes of further bucket keys that concern it.
        """
        if self._subscriptions.get(subscriber) == (buckets, prefixes):
            return
        self.unsubscribe(subscriber)
        self._subscriptions[subscriber] = (buckets, prefixes)
        for bucket in buckets:
            self._by_bucket[bucket].add(subscriber)
        for prefix in prefixes:
            self._by_prefix[prefix].add(subscriber)

    def unsubscribe(self, subscriber: T) -> None:
        """Remove a subscriber, if it is subscribed."""
        buckets, prefixes = self._subscriptions.pop(subscriber, (frozenset(), frozenset()))
        for bucket in buckets:
            _remove(self._by_bucket, bucket, subscriber)
        for prefix in prefixes:
            _remove(self._by_prefix, prefix, subscriber)

    def clear(self) -> None:
        """Remove all subscribers."""
        self._subscriptions.clear()
        self._by_bucket.clear()
        self._by_prefix.clear()

    def subscribers_of(self, buckets: Collection[str]) -> set[T]:
        """Return the subscribers that at least one of the bucket keys concerns."""
        found: set[T] = set()
        for bucket in buckets:
            found |= self._by_bucket.get(bucket, set())
            for prefix in prefixes_of(bucket) if self._by_prefix else ():
                found |= self._by_prefix.get(prefix, set())
        return found


def _remove(index: dict[str, set[T]], key: str, subscriber: T) -> None:
    """Remove a subscriber from a key's set, and the set if it is empty, so that the index does not grow for ever."""
    index[key].discard(subscriber)
    if not index[key]:
        del index[key]
