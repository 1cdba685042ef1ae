"""All WebSocket connections of the server, by gateway. It limits their number and passes on the store's notices."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NamedTuple

from gateway.client_tracker import ConnectedClient
from gateway.live.channel import Channel
from gateway.live.close_codes import GOING_AWAY, STOPPING
from gateway.live.connection import LiveConnection
from gateway.settings import GatewaySettings
from lakesync.auth.keys import Key
from lakesync.engine import SyncGateway
from lakesync.model.errors import BackpressureError
from lakesync.staging.notices import Notice
from lakesync.staging.store.feed import NoticeSource


class ConnectionLimits(NamedTuple):
    """The most connections that are open at once."""

    server: int
    gateway: int
    """Of one gateway."""
    client: int
    """Of one client."""


def limits_of(settings: GatewaySettings) -> ConnectionLimits:
    """Return the configured limits."""
    return ConnectionLimits(settings.max_connections, settings.gateway_connections, settings.client_connections)


class Hub:
    """Owns the channels and passes each of the store's notices to its gateway's channel.

    Use it from the event loop's thread. The store calls `_on_commit` in a thread of its own.
    """

    def __init__(self, store: NoticeSource, limits: ConnectionLimits, on_broadcast: Callable[[int], None]) -> None:
        """Create the hub, without channels.

        Args:
            store: whose notices are watched.
            limits: of connections.
            on_broadcast: called with the number of deltas of each broadcast.
        """
        self._on_broadcast = on_broadcast
        self._store = store
        self._limits = limits
        self._count = 0
        self._channels: dict[str, Channel] = {}
        self._lock = threading.Lock()
        self._notices: list[Notice] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_watching: Callable[[], None] | None = None

    def __len__(self) -> int:
        return self._count

    def check_limits(self, gateway_id: str, client_id: str | None) -> None:
        """Check that one more connection is allowed.

        Args:
            gateway_id: of the gateway that it is to.
            client_id: of the client; None if the server runs without a secret, where only a pull names the client.

        Raises:
            BackpressureError: a limit is reached; the message says which.
        """
        channel = self._channels.get(gateway_id)
        held = {
            "the server": (self._count, self._limits.server),
            f"gateway {gateway_id!r}": (len(channel) if channel is not None else 0, self._limits.gateway),
        }
        if client_id is not None:
            held[f"client {client_id!r}"] = (
                channel.count_of(client_id) if channel is not None else 0,
                self._limits.client,
            )
        for owner, (count, most) in held.items():
            if count >= most:
                raise BackpressureError(
                    f"{owner} holds {count} WebSocket connections, its most: try again later, or use HTTP",
                    retry_after=5,
                )

    def subscribe(self, gateway: SyncGateway, connection: LiveConnection) -> Channel:
        """Add a connection to a gateway's channel.

        Args:
            gateway: that the connection is to.
            connection: the new connection.
        """
        if self._stop_watching is None:
            self._loop = asyncio.get_running_loop()
            self._stop_watching = self._store.watch(self._on_commit)
        channel = self._channels.setdefault(gateway.gateway_id, Channel(gateway, self._on_broadcast))
        channel.subscribe(connection)
        self._count += 1
        return channel

    def unsubscribe(self, gateway: SyncGateway, connection: LiveConnection) -> None:
        """Remove a connection that has ended.

        Args:
            gateway: that the connection was to.
            connection: the ended connection.
        """
        channel = self._channels[gateway.gateway_id]
        channel.unsubscribe(connection)
        self._count -= 1
        if not channel:
            del self._channels[gateway.gateway_id]

    def connected_clients(self, gateway_id: str) -> dict[str, ConnectedClient]:
        """Return the connected clients of a gateway that have pulled, by client id."""
        channel = self._channels.get(gateway_id)
        return channel.connected_clients() if channel is not None else {}

    def drain(self) -> None:
        """Close all connections; one whose message is being served is closed after its answer."""
        for channel in list(self._channels.values()):
            channel.close(GOING_AWAY, STOPPING)

    def close_signed_by(self, keys: frozenset[Key]) -> None:
        """Close all connections whose token was signed by one of these keys."""
        for channel in list(self._channels.values()):
            channel.close_signed_by(keys)

    def close(self) -> None:
        """Stop watching the store."""
        if self._stop_watching is not None:
            self._stop_watching()
        with self._lock:
            self._loop = None

    def _on_commit(self, notice: Notice) -> None:
        """Queue a notice for the event loop. The store calls this in one of its threads."""
        with self._lock:
            if self._loop is None:
                return
            self._notices.append(notice)
            if len(self._notices) == 1:
                self._loop.call_soon_threadsafe(self._deliver_notices)

    def _deliver_notices(self) -> None:
        with self._lock:
            notices, self._notices = self._notices, []
        for notice in notices:
            channel = self._channels.get(notice.gateway)
            if channel is not None:
                channel.on_commit(notice)
