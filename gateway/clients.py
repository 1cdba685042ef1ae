"""When each client was last seen by this process and how far it is, for operators."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

import msgspec

from lakesync.engine.explain import Whereabouts
from lakesync.engine.following import Follower
from lakesync.hlc import wall_of
from lakesync.types import SyncPage, SyncPull

REMEMBERED_CLIENTS = 20_000
"""Of all gateways; the one that was not seen for the longest time is forgotten first."""


@dataclass(slots=True)
class _Seen:
    pulled_ms: int | None = None
    pushed_ms: int | None = None
    cursor: int = 0
    has_more: bool = False
    told_ms: int | None = None
    """It was sent what there was for it by then, up to its cursor where more was waiting."""
    since: int | None = None
    """The cursor that it pulled with last; None before the first."""
    brought_ms: int | None = None
    """Since when each of its pulls, all with this cursor, brought something; None where the last brought nothing."""
    repeats: int = 0
    knows_resync: bool = False

    @property
    def seen_ms(self) -> int:
        return max(self.pulled_ms or 0, self.pushed_ms or 0)


class ClientStanding(msgspec.Struct, frozen=True, rename="camel"):
    """One client, as far as this process saw it."""

    client_id: str
    seen_ms: int
    """Server wall time of its latest push or pull."""
    pulled_ms: int | None
    pushed_ms: int | None
    cursor_hlc: int
    """The cursor that it was last handed by a pull or a broadcast; 0 before the first."""
    cursor_ms: int | None
    """Server wall time of that cursor: everything up to then was sent to it."""
    has_more: bool
    """More was waiting for it when it was handed that cursor."""
    behind_ms: int | None
    """For how long, at most, it has lacked something by now; 0: it has everything. None: it never pulled."""
    repeats: int
    """How often in a row it has pulled with the same cursor again, although each answer brought something: it could
    not take what it was sent, or no answer came through."""
    connected: bool
    """It holds a WebSocket to this process."""


class SeenClients:
    """What was seen of clients, within bounds; owned by the event loop's thread, but for `standing`."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()

    def pushed(self, gateway: str, client_id: str) -> None:
        """A push was answered."""
        self._note(gateway, client_id).pushed_ms = self.now_ms()

    def pulled(self, gateway: str, pull: SyncPull, page: SyncPage, *, asked_ms: int, knows_resync: bool) -> None:
        """A pull was answered.

        Args:
            gateway: its id.
            pull: what was asked.
            page: the answer.
            asked_ms: `now_ms` before the page was read: what is committed while the answer is on its way is not in it.
            knows_resync: the client understands RESYNC_REQUIRED.
        """
        seen = self._note(gateway, pull.client_id)
        seen.pulled_ms = asked_ms
        if pull.source is not None:
            return  # it says nothing of how far the client is with the gateway's own feed
        seen.told_ms = asked_ms
        seen.cursor, seen.has_more, seen.knows_resync = page.server_hlc, page.has_more, knows_resync
        again = seen.brought_ms is not None and pull.since_hlc == seen.since
        seen.repeats = seen.repeats + 1 if again and page.deltas else 0
        seen.since = pull.since_hlc
        seen.brought_ms = (seen.brought_ms if again else asked_ms) if page.deltas else None

    def left(self, gateway: str, follower: Follower, *, owed: bool) -> None:
        """A WebSocket has ended, on which a client followed.

        Args:
            gateway: its id.
            follower: where the client stood.
            owed: something was on its way to it.
        """
        seen = self._seen.get((gateway, follower.client_id))
        if seen is None or follower.cursor < seen.cursor:
            return
        seen.cursor, seen.has_more = follower.cursor, follower.more
        if not owed:
            seen.told_ms = self.now_ms()

    def standing(self, gateway: str, newest: int, followers: Iterable[Follower], limit: int) -> list[ClientStanding]:
        """The clients of a gateway, the one that is furthest behind first. For any thread: of many it takes its time.

        Args:
            gateway: its id.
            newest: arrival of its newest commit.
            followers: those that are connected, with their cursors after the latest broadcast.
            limit: how many to tell of.
        """
        connected = {follower.client_id: follower for follower in followers}
        found = [
            self._standing(client_id, seen, connected.get(client_id), newest)
            for (of, client_id), seen in list(self._seen.items())
            if of == gateway
        ]
        return sorted(found, key=_furthest_first)[:limit]

    def of(self, gateway: str, client_id: str, newest: int, follower: Follower | None) -> ClientStanding | None:
        """One client, as in `standing`; None where it was not seen."""
        seen = self._seen.get((gateway, client_id))
        return None if seen is None else self._standing(client_id, seen, follower, newest)

    def whereabouts(self, gateway: str, client_id: str, follower: Follower | None) -> Whereabouts:
        """Where a client is, for an explanation.

        Args:
            gateway: its id.
            client_id: the client's.
            follower: where it stands, if it is connected.
        """
        seen = self._seen.get((gateway, client_id))
        if seen is None or seen.since is None:
            return Whereabouts()
        return Whereabouts(
            seen.since if seen.repeats else seen.cursor,
            seen.since,
            knows_resync=seen.knows_resync,
            standing=None if seen.repeats or follower is None else follower.standing,
        )

    def _note(self, gateway: str, client_id: str) -> _Seen:
        key = (gateway, client_id)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen()
            if len(self._seen) > REMEMBERED_CLIENTS:
                self._seen.popitem(last=False)
        else:
            self._seen.move_to_end(key)
        return seen

    def now_ms(self) -> int:
        """Server wall time."""
        return int(self._now() * 1000)

    def _standing(self, client_id: str, seen: _Seen, follower: Follower | None, newest: int) -> ClientStanding:
        cursor, has_more = seen.cursor, seen.has_more
        if follower is not None and follower.cursor > cursor:
            cursor, has_more = follower.cursor, follower.more
        told_until = wall_of(newest) + 1 if follower is not None else seen.told_ms
        behind = _behind(cursor, newest, None if has_more else told_until, self.now_ms()) if cursor else None
        if seen.repeats and seen.brought_ms is not None:
            behind = max(1, self.now_ms() - seen.brought_ms)
        return ClientStanding(
            client_id=client_id,
            seen_ms=seen.seen_ms,
            pulled_ms=seen.pulled_ms,
            pushed_ms=seen.pushed_ms,
            cursor_hlc=cursor,
            cursor_ms=wall_of(cursor) or None,
            has_more=has_more,
            behind_ms=behind,
            repeats=seen.repeats,
            connected=follower is not None,
        )


def _behind(cursor: int, newest: int, told_until: int | None, now: int) -> int:
    """A cursor stays where it is while nothing concerns its client: what it was told until then it has all the same."""
    if cursor >= newest or (told_until is not None and told_until > wall_of(newest)):
        return 0
    return max(1, now - max(wall_of(cursor), told_until or 0))


def _furthest_first(client: ClientStanding) -> tuple[float, int, str]:
    return (-inf if client.behind_ms is None else -client.behind_ms, client.cursor_hlc, client.client_id)
