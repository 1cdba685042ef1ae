"""Notifies listeners of the bucket keys that a commit changed, and of clients that are connected to other processes.

A *bucket* is the rows that a rule of the sync rules gives to clients with equal claims (fields of a token). Its *bucket
key* is the rule's name and these claims. A *gateway* is one app's stream of changes. Its *channels* (in each process,
all WebSocket connections of one gateway) listen, in order to send changes to connected clients (*broadcasts*). Stores
collect notices while a commit is in progress (`Announcement`), and deliver them once readers can see the commit
(`Notices`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import structlog

from lakesync.model.parts import grouped

log = structlog.get_logger(__name__)


PULLS_OVER_HTTP = ""
"""`connection_id` of a client with a WebSocket that also gets rows by HTTP requests."""
_PRESENCE_BYTES = 4000
"""Bytes of presence with which a notice is full; Postgres limits a notice to 7,999 bytes. One client takes 3,100 at
most."""


class Presence(NamedTuple):
    """A connection on which a client gets rows from a process of its gateway.

    A client with several connections gets pages of its own instead of shared broadcasts, because each connection must
    take into account what the others sent.
    """

    client_id: str
    connection_id: str
    """Unique among the connections of all processes, or `PULLS_OVER_HTTP`."""


class Notice(NamedTuple):
    """A message to listeners: commits of a gateway have become visible, or clients have connected to it."""

    gateway: str
    """The gateway's id."""
    buckets: frozenset[str] | None
    """Bucket keys under which rows changed; None if any key may be affected."""
    presence: tuple[Presence, ...] = ()
    """Connected clients. A process with another connection of such a client announces that in turn, so that both know
    that the client has several."""
    after_loss: bool = False
    """Whether notices before this one may have been lost, also those of connected clients."""


Listener = Callable[[Notice], None]
"""A function that is called with each notice, in a thread of the store. It must return quickly."""


class Notices:
    """The listeners of this process. Each store has one; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        """The functions that `deliver` calls; replaced as a whole, so that `deliver` needs no lock."""

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; return a function that removes it.

        A listener that is added twice is called twice, until each of the two functions was called.
        """

        def registered(notice: Notice) -> None:  # its own object for each call of `watch`
            listener(notice)

        with self._lock:
            self._listeners = (*self._listeners, registered)

        def remove() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not registered)

        return remove

    def deliver(self, notices: Iterable[Notice]) -> None:
        """Call every listener with each notice. An exception of a listener is logged, and the others are called."""
        for notice in notices:
            for listener in self._listeners:
                try:
                    listener(notice)
                except Exception:
                    log.exception("a listener failed", gateway=notice.gateway)


class Announcement:
    """Collects the notices of a commit until it is known to be visible. Use it from one thread."""

    def __init__(self) -> None:
        self._changed: dict[str, set[str] | None] = {}
        """By gateway: the bucket keys under which rows changed; None for any key."""
        self._presence: list[Notice] = []
        """The notices of connected clients."""

    def rows_changed(self, gateway: str, buckets: Iterable[str]) -> None:
        """Record that rows changed under these bucket keys.

        Args:
            gateway: the gateway's id.
            buckets: the bucket keys.
        """
        changed = self._changed.setdefault(gateway, set())
        if changed is not None:
            changed.update(buckets)

    def all_changed(self, gateway: str) -> None:
        """Record that rows may have changed under any bucket key."""
        self._changed[gateway] = None

    def announce_presence(self, gateway: str, presence: Iterable[Presence]) -> None:
        """Record connected clients, in notices that are small enough for Postgres.

        Args:
            gateway: the gateway's id.
            presence: the connected clients.
        """
        groups = grouped(presence, lambda each: len(msgspec.json.encode(each)), _PRESENCE_BYTES)
        self._presence += [Notice(gateway, frozenset(), tuple(group)) for group in groups]

    def add(self, other: Announcement) -> None:
        """Record what another announcement has recorded: that of a function committed in the same transaction."""
        for gateway, buckets in other._changed.items():
            if buckets is None:
                self.all_changed(gateway)
            else:
                self.rows_changed(gateway, buckets)
        self._presence += other._presence

    def take(self) -> list[Notice]:
        """Return the recorded notices, one for each gateway and one for each part of the presence, and clear them."""
        notices = [
            Notice(gateway, None if buckets is None else frozenset(buckets))
            for gateway, buckets in self._changed.items()
        ]
        notices += self._presence
        self._changed, self._presence = {}, []
        return notices
