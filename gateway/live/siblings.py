"""Knows which clients of a gateway have several WebSocket connections, to this server process or to others.

Each gateway's `Channel` has one `ClientConnections`. A *sibling* of a connection is another connection of the same
client. What a client writes over one connection must reach it over the others, so the channel sends such a client pages
of its own instead of shared broadcasts. Processes learn of each other's connections from announcements (`Presence`),
which they send through the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gateway.live.connection import LiveConnection
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
        """Record which connections have a sibling among the announced connections of all processes.

        Returns:
            The connections that must announce themselves in response.
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
