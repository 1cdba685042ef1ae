"""All WebSocket connections of the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NamedTuple

from gateway.clients import Followed
from gateway.live.closing import GOING_AWAY, STOPPING
from gateway.live.connection import LiveConnection
from gateway.live.room import Room
from gateway.settings import GatewaySettings
from lakesync.auth.keys import Key
from lakesync.engine import SyncGateway
from lakesync.model.errors import BackpressureError
from lakesync.staging.notices import Notice
from lakesync.staging.store import StagingStore


class Shares(NamedTuple):
    """How many connections are held at once."""

    server: int
    gateway: int
    client: int


def shares_of(settings: GatewaySettings) -> Shares:
    """Those that the settings give."""
    return Shares(settings.max_connections, settings.gateway_connections, settings.client_connections)


class Hub:
    """Brings the store's notices to the rooms that they concern. Belongs to the event loop's thread."""

    def __init__(self, store: StagingStore, shares: Shares, count: Callable[[int], None]) -> None:
        """Args: count: told how many deltas were broadcast."""
        self._count_deltas = count
        self._store = store
        self._shares = shares
        self._count = 0
        self._rooms: dict[str, Room] = {}
        self._lock = threading.Lock()
        self._heard: list[Notice] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[], None] | None = None

    def __len__(self) -> int:
        return self._count

    def check(self, gateway_id: str, client_id: str | None) -> None:
        """Whether there is room for one more connection of a client.

        Args:
            gateway_id: which gateway it is to.
            client_id: the client's; None where nobody knows before it pulls.

        Raises:
            BackpressureError: there is none.
        """
        room = self._rooms.get(gateway_id)
        held = {
            "the server": (self._count, self._shares.server),
            f"gateway {gateway_id!r}": (len(room) if room is not None else 0, self._shares.gateway),
        }
        if client_id is not None:
            held[f"client {client_id!r}"] = (room.held_by(client_id) if room is not None else 0, self._shares.client)
        for who, (count, most) in held.items():
            if count >= most:
                raise BackpressureError(
                    f"{who} holds {count} WebSocket connections, its most: try again later, or use HTTP",
                    retry_after=5,
                )

    def enter(self, gateway: SyncGateway, connection: LiveConnection) -> Room:
        """Take in a connection to a gateway."""
        if self._end is None:
            self._loop = asyncio.get_running_loop()
            self._end = self._store.watch(self._hear)
        room = self._rooms.setdefault(gateway.gateway_id, Room(gateway, self._count_deltas))
        room.enter(connection)
        self._count += 1
        return room

    def leave(self, gateway: SyncGateway, connection: LiveConnection) -> None:
        """Let a connection go that has ended."""
        room = self._rooms[gateway.gateway_id]
        room.leave(connection)
        self._count -= 1
        if not room:
            del self._rooms[gateway.gateway_id]

    def followed(self, gateway_id: str) -> dict[str, Followed]:
        """The connected clients of a gateway that have pulled, by id."""
        room = self._rooms.get(gateway_id)
        return room.followed() if room is not None else {}

    def drain(self) -> None:
        """End every connection, after the answer that it may be waiting for."""
        for room in list(self._rooms.values()):
            room.close(GOING_AWAY, STOPPING)

    def end_signed_by(self, keys: frozenset[Key]) -> None:
        """End every connection whose token one of these keys has signed."""
        for room in list(self._rooms.values()):
            room.close_signed_by(keys)

    def close(self) -> None:
        """Hear no more of the store."""
        if self._end is not None:
            self._end()
        with self._lock:
            self._loop = None

    def _hear(self, notice: Notice) -> None:
        """In a thread of the store."""
        with self._lock:
            if self._loop is None:
                return
            self._heard.append(notice)
            if len(self._heard) == 1:
                self._loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        with self._lock:
            heard, self._heard = self._heard, []
        for notice in heard:
            room = self._rooms.get(notice.gateway)
            if room is not None:
                room.hear(notice)
