"""Notices of commits to the listeners of this process, and of clients' connections to all processes of a gateway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import structlog

log = structlog.get_logger(__name__)


PULLS_OVER_HTTP = ""
"""`connection_id` of a client that follows over a connection and is sent rows by an HTTP request besides."""
_MAX_PRESENCE_BYTES = 4000
"""Size of the presence in one notice; Postgres limits a notice to 7,999 bytes."""


class Presence(NamedTuple):
    """A client is connected to a process of its gateway."""

    client_id: str
    connection_id: str
    """Unique among the connections of all processes; or `PULLS_OVER_HTTP`."""


class Notice(NamedTuple):
    """Commits of a gateway have become visible, or clients have connected to it."""

    gateway: str
    buckets: frozenset[str] | None
    """Bucket keys under which rows moved; None if any may be concerned."""
    presence: tuple[Presence, ...] = ()
    """Clients that are connected. A process that holds another connection of one of them announces that in turn, so
    both know that the client may get rows on the other connection."""


Listener = Callable[[Notice], None]


class Notices:
    """Those who are told. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` from now on; what is returned ends that."""

        def told(notice: Notice) -> None:
            listener(notice)

        with self._lock:
            self._listeners = (*self._listeners, told)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(known for known in self._listeners if known is not told)

        return end

    def tell(self, notices: Iterable[Notice]) -> None:
        """Tell everybody; a listener that fails is logged and does not keep the others from it."""
        for notice in notices:
            for listener in self._listeners:
                try:
                    listener(notice)
                except Exception:
                    log.exception("a listener failed", gateway=notice.gateway)


class Announcement:
    """What the transaction under way moves, until it is known to have happened. Belongs to one thread."""

    def __init__(self) -> None:
        self._moved: dict[str, set[str] | None] = {}
        self._presence: list[Notice] = []

    def moved(self, gateway: str, buckets: Iterable[str]) -> None:
        """Note moves under these bucket keys."""
        known = self._moved.setdefault(gateway, set())
        if known is not None:
            known.update(buckets)

    def everything(self, gateway: str) -> None:
        """Note a change that may concern any bucket key."""
        self._moved[gateway] = None

    def announce_presence(self, gateway: str, presence: Iterable[Presence]) -> None:
        """Note connected clients, in notices of their own that are small enough for Postgres."""
        self._presence += [Notice(gateway, frozenset(), part) for part in _in_parts(presence)]

    def take(self) -> list[Notice]:
        """What was noted; nothing is, afterwards."""
        noted = [
            Notice(gateway, None if buckets is None else frozenset(buckets)) for gateway, buckets in self._moved.items()
        ]
        noted += self._presence
        self._moved, self._presence = {}, []
        return noted


def _in_parts(presence: Iterable[Presence]) -> Iterator[tuple[Presence, ...]]:
    part: list[Presence] = []
    size = 0
    for each in presence:
        bytes_ = len(msgspec.json.encode(each))
        if part and size + bytes_ > _MAX_PRESENCE_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append(each)
        size += bytes_
    if part:
        yield tuple(part)
