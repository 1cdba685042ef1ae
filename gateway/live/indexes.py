"""Two indexes of a gateway's WebSocket connections: by client, and by the bucket keys whose changes they get.

A gateway is one app's stream of changes; its `Channel` has one index of each kind. A *sibling* of a connection is
another connection of the same client, to this process or another one. What a client writes over one connection must
reach it over the others. So the channel sends such a client pages of its own instead of shared broadcasts. Processes
learn of each other's connections from announcements (`Presence`), which they send through the store. A connected client
that also pulls over HTTP is announced in the same way.

When a commit changes rows under some bucket keys, the channel looks up which connections it concerns. A *bucket key*
names a bucket of the sync rules with the claims (fields of tokens) that may see it. Some keys cannot be computed from a
client's claims before a row has them; for these, a subscription has prefixes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from gateway.live.connection import LiveConnection
from lakesync.rules.keys import prefixes_of
from lakesync.staging.notices import Presence


class ClientConnections:
    """The connections of each client to this process, and which clients have siblings anywhere."""

    def __init__(self) -> None:
        self._by_client: defaultdict[str, set[LiveConnection]] = defaultdict(set)
        """Client id → its connections to this process."""
        self.multi_connected: set[str] = set()
        """Ids of clients with several connections, to this process or others."""

    def add(self, connection: LiveConnection) -> None:
        """Add a new connection."""
        self._by_client[connection.client_name].add(connection)
        self._update(connection.client_name)

    def remove(self, connection: LiveConnection) -> None:
        """Remove a connection that has ended."""
        self._by_client[connection.client_name].discard(connection)
        self._update(connection.client_name)

    def count_of(self, client_id: str) -> int:
        """Return the number of a client's connections to this process."""
        return len(self._by_client.get(client_id, ()))

    def record_announced(self, presence: Iterable[Presence]) -> set[LiveConnection]:
        """Record which connections have a sibling among announced connections.

        Args:
            presence: announcements of connections to any process, also to this one.

        Returns:
            The connections that must announce themselves in response, so that the siblings' processes know of them.
        """
        with_sibling = {
            connection
            for each in presence
            for connection in self._by_client.get(each.client_id, ())
            if connection.connection_id != each.connection_id and not connection.has_sibling
        }
        for connection in with_sibling:
            connection.is_announced = False
            self.record_sibling(connection)
        return with_sibling

    def record_sibling(self, connection: LiveConnection) -> None:
        """Record that a connection has, or may have, a sibling at another process."""
        connection.has_sibling = True
        self._update(connection.client_name)

    def _update(self, client_id: str) -> None:
        """Update `multi_connected` for a client whose connections, or their siblings, have changed."""
        connections = self._by_client[client_id]
        if not connections:
            del self._by_client[client_id]
        if len(connections) > 1 or any(connection.has_sibling for connection in connections):
            self.multi_connected.add(client_id)
        else:
            self.multi_connected.discard(client_id)


class SubscriptionIndex:
    """Maps bucket keys to connections. The cost of a lookup grows with its result, not with all connections."""

    def __init__(self) -> None:
        self._subscriptions: dict[LiveConnection, tuple[frozenset[str], frozenset[str]]] = {}
        """Connection → its bucket keys and its prefixes."""
        self._by_bucket: dict[str, set[LiveConnection]] = defaultdict(set)
        """Bucket key → the connections that have it."""
        self._by_prefix: dict[str, set[LiveConnection]] = defaultdict(set)
        """Prefix of bucket keys → the connections that see every key with it."""

    def subscribe(self, connection: LiveConnection, buckets: frozenset[str], prefixes: frozenset[str]) -> None:
        """Replace the subscription of a connection.

        Args:
            connection: the connection.
            buckets: the bucket keys that concern it.
            prefixes: prefixes of further bucket keys that concern it.
        """
        if self._subscriptions.get(connection) == (buckets, prefixes):
            return
        self.unsubscribe(connection)
        self._subscriptions[connection] = (buckets, prefixes)
        for bucket in buckets:
            self._by_bucket[bucket].add(connection)
        for prefix in prefixes:
            self._by_prefix[prefix].add(connection)

    def unsubscribe(self, connection: LiveConnection) -> None:
        """Remove a connection, if it is subscribed."""
        buckets, prefixes = self._subscriptions.pop(connection, (frozenset(), frozenset()))
        for bucket in buckets:
            _remove(self._by_bucket, bucket, connection)
        for prefix in prefixes:
            _remove(self._by_prefix, prefix, connection)

    def clear(self) -> None:
        """Remove all connections."""
        self._subscriptions.clear()
        self._by_bucket.clear()
        self._by_prefix.clear()

    def connections_of(self, buckets: Collection[str]) -> set[LiveConnection]:
        """Return the connections that at least one of the bucket keys concerns."""
        found: set[LiveConnection] = set()
        for bucket in buckets:
            found |= self._by_bucket.get(bucket, set())
            for prefix in prefixes_of(bucket) if self._by_prefix else ():
                found |= self._by_prefix.get(prefix, set())
        return found


def _remove(index: dict[str, set[LiveConnection]], key: str, connection: LiveConnection) -> None:
    """Remove a connection from a key's set, and the set if it is empty, so that the index does not grow for ever."""
    index[key].discard(connection)
    if not index[key]:
        del index[key]
