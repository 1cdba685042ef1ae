"""Telling others in this process that a gateway has a new visible arrival."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

log = structlog.get_logger(__name__)


class Notice(NamedTuple):
    """Commits of a gateway have become visible."""

    gateway: str
    buckets: frozenset[str] | None
    """The bucket keys in which anything moved; None: any may be concerned."""


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
        self._said: list[Notice] = []

    def moved(self, gateway: str, buckets: Iterable[str]) -> None:
        """Note moves under these bucket keys."""
        known = self._moved.setdefault(gateway, set())
        if known is not None:
            known.update(buckets)

    def everything(self, gateway: str) -> None:
        """Note a change that may concern any bucket key."""
        self._moved[gateway] = None

    def say(self, gateway: str, words: Iterable[str]) -> None:
        """Note words between processes, a few at a time, in a notice of their own."""
        self._said.append(Notice(gateway, frozenset(words)))

    def take(self) -> list[Notice]:
        """What was noted; nothing is, afterwards."""
        noted = [
            Notice(gateway, None if buckets is None else frozenset(buckets)) for gateway, buckets in self._moved.items()
        ]
        noted += self._said
        self._moved, self._said = {}, []
        return noted
