"""When each client was last seen by this process and how far it is behind, for operators."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from operator import itemgetter
from typing import NamedTuple

import msgspec

from lakesync.engine.following import Follower
from lakesync.engine.lag import Look, Unsent
from lakesync.engine.whereabouts import Whereabouts
from lakesync.model.hlc import wall_of
from lakesync.model.types import Claims, SyncPage, SyncPull

REMEMBERED_CLIENTS = 20_000
"""Of all gateways; the one that was not seen for the longest time is forgotten first."""

Arrivals = tuple[tuple[str, int], ...]
"""The newest arrival in each shard of a gateway."""


class Followed(NamedTuple):
    """A client that is connected and receives broadcasts."""

    follower: Follower
    owed: bool
    """Something may wait for it."""


class _Found(NamedTuple):
    """What the latest look at a client found."""

    unsent: Unsent | None
    sent: object
    """What the client had been sent, as `_sent`."""
    arrivals: Arrivals
    """Of the gateway at that time."""
    number: int
    """Looks are counted."""


@dataclass(slots=True)
class _Seen:
    pulled_ms: int | None = None
    pushed_ms: int | None = None
    left_ms: int | None = None
    """When its latest WebSocket ended."""
    cursor: int | None = None
    """The one that it was last handed by a pull or a broadcast; None before the first."""
    has_more: bool = False
    since: int | None = None
    """The cursor that it pulled with last; None before the first."""
    brought: bool = False
    """Its last pull brought something."""
    repeats: int = 0
    knows_resync: bool = False
    claims: Claims | None = None
    """Those of its last pull."""
    sent: int = 0
    """How often it was sent something, or may have been."""
    found: _Found | None = None

    @property
    def seen_ms(self) -> int:
        return max(self.pulled_ms or 0, self.pushed_ms or 0, self.left_ms or 0)


class ClientStanding(msgspec.Struct, frozen=True, rename="camel"):
    """One client, as far as this process saw it."""

    client_id: str
    seen_ms: int
    """Server wall time of its latest push or pull, or of the end of its latest WebSocket."""
    offline_since_ms: int | None
    """The same, of a client that holds no WebSocket to this process; null while it holds one."""
    pulled_ms: int | None
    pushed_ms: int | None
    cursor_hlc: int
    """The cursor that it was last handed by a pull or a broadcast; 0 before the first."""
    cursor_ms: int | None
    """Server wall time of that cursor."""
    has_more: bool
    """More was waiting for it when it was handed that cursor."""
    unsent_since_ms: int | None
    """Server wall time of the oldest change by others that it may see and was not sent; null where there is none."""
    behind_ms: int | None
    """The age of that change; 0: it was sent everything. Null: it never pulled, or was not looked at yet."""
    repeats: int
    """How often in a row it has pulled with the same cursor again, although each answer brought something: it could
    not take what it was sent, or no answer came through."""
    connected: bool
    """It holds a WebSocket to this process."""


class Lag(NamedTuple):
    """How far the clients of one gateway are behind."""

    clients: int
    behind: int
    """Of those, how many were not sent a change."""
    unsent_since_ms: int | None
    """Server wall time of the oldest such change; None where there is none."""


class Due(NamedTuple):
    """A client that is to be looked at."""

    look: Look
    sent: object
    """What it had been sent by then."""


class SeenClients:
    """What was seen of clients, within bounds; owned by the event loop's thread, but for `standing` and `lags`."""

    def __init__(self, wall: Callable[[], int]) -> None:
        """Args: wall: the server's clock in milliseconds, by which commits arrive."""
        self._wall = wall
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()
        self._of: dict[str, dict[str, _Seen]] = {}
        """The same by gateway."""
        self._looks = count(1)

    def pushed(self, gateway: str, client_id: str) -> None:
        """A push was answered."""
        self._note(gateway, client_id).pushed_ms = self._wall()

    def pulled(self, gateway: str, pull: SyncPull, page: SyncPage, claims: Claims, *, knows_resync: bool) -> None:
        """A pull was answered.

        Args:
            gateway: its id.
            pull: what was asked.
            page: the answer.
            claims: the client's.
            knows_resync: the client understands RESYNC_REQUIRED.
        """
        seen = self._note(gateway, pull.client_id)
        seen.pulled_ms = self._wall()
        if pull.source is not None:
            return  # it says nothing of how far the client is with the gateway's own feed
        seen.sent += 1
        seen.cursor, seen.has_more = page.server_hlc, page.has_more
        seen.knows_resync, seen.claims = knows_resync, claims
        again = seen.brought and pull.since_hlc == seen.since
        seen.brought = bool(page.deltas)
        seen.repeats = seen.repeats + 1 if again and seen.brought else 0
        seen.since = pull.since_hlc

    def left(self, gateway: str, follower: Follower) -> None:
        """A WebSocket has ended, on which a client followed.

        Args:
            gateway: its id.
            follower: where the client stood.
        """
        seen = self._seen.get((gateway, follower.client_id))
        if seen is None:
            return
        seen.left_ms = self._wall()
        placed = not (follower.standing.unplaced and follower.more)
        if placed and seen.cursor is not None and follower.cursor >= seen.cursor:
            seen.sent += 1
            seen.cursor, seen.has_more = follower.cursor, follower.more

    def due(
        self,
        gateway: str,
        arrivals: Arrivals,
        followed: Mapping[str, Followed],
        client_id: str | None = None,
        *,
        most: int | None = None,
        shared: bool = False,
    ) -> list[Due]:
        """The clients that may have come to lack something since they were looked at, the longest ago first.

        Args:
            gateway: its id.
            arrivals: of its newest commits.
            followed: those that are connected, by id.
            client_id: the only one that is asked for.
            most: clients to return; None: all.
            shared: other processes may have sent a client what it lacked.
        """
        found: list[tuple[int, str, _Seen, object]] = []
        mine = self._of.get(gateway, {})
        for name in mine if client_id is None else mine.keys() & {client_id}:
            seen = mine[name]
            if _is_told(seen, followed.get(name)):
                continue
            known, sent = seen.found, _sent(seen, followed.get(name))
            number = known.number if known is not None else 0
            if known is None or known.sent != sent or known.arrivals != arrivals or not _holds(known.unsent, shared):
                found.append((number, name, seen, sent))
        found.sort(key=itemgetter(0))
        return [self._due(gateway, each, followed) for each in found[:most]]

    def _due(self, gateway: str, found: tuple[int, str, _Seen, object], followed: Mapping[str, Followed]) -> Due:
        _, name, seen, sent = found
        before = seen.found.unsent if seen.found is not None and seen.found.sent == sent else None
        return Due(Look(name, self.whereabouts(gateway, name, followed.get(name)), before), sent)

    def looked(
        self, gateway: str, arrivals: Arrivals, followed: Mapping[str, Followed], due: Due, unsent: Unsent | None
    ) -> None:
        """A client was looked at; nothing is noted where it was sent something meanwhile.

        Args:
            gateway: its id.
            arrivals: of its newest commits, before the look.
            followed: those that are connected now, by id.
            due: the client.
            unsent: what was found.
        """
        name = due.look.client_id
        seen = self._seen.get((gateway, name))
        if seen is not None and _sent(seen, followed.get(name)) == due.sent:
            seen.found = _Found(unsent, due.sent, arrivals, next(self._looks))

    def standing(self, gateway: str, followed: Mapping[str, Followed], limit: int) -> list[ClientStanding]:
        """The clients of a gateway, the one that is furthest behind first. For any thread: of many it takes its time.

        Args:
            gateway: its id.
            followed: those that are connected, by id.
            limit: how many to tell of.
        """
        now = self._wall()
        mine = list(self._of.get(gateway, {}).items())
        found = [_standing(name, seen, followed.get(name), now) for name, seen in mine]
        return sorted(found, key=_furthest_first)[:limit]

    def of(self, gateway: str, client_id: str, followed: Mapping[str, Followed]) -> ClientStanding | None:
        """One client, as in `standing`; None where it was not seen."""
        seen = self._seen.get((gateway, client_id))
        return None if seen is None else _standing(client_id, seen, followed.get(client_id), self._wall())

    def lags(self, followed: Callable[[str], Mapping[str, Followed]]) -> dict[str, Lag]:
        """Gateway → how far its clients are behind, as they were last looked at.

        Args:
            followed: gives a gateway's connected clients, by id.
        """
        found = {}
        for gateway, mine in self._of.items():
            connected = followed(gateway)
            unsent = [since for name, seen in mine.items() if (since := _unsent_since(seen, connected.get(name)))]
            oldest = min(unsent, default=None)
            found[gateway] = Lag(len(mine), len(unsent), None if oldest is None else wall_of(oldest))
        return found

    def gateways(self) -> Sequence[str]:
        """Those of which a client was seen, the ones first that did not have their turn for the longest time."""
        return list(self._of)

    def had_its_turn(self, gateway: str) -> None:
        """Note that the clients of a gateway were looked at."""
        if gateway in self._of:
            self._of[gateway] = self._of.pop(gateway)

    def whereabouts(self, gateway: str, client_id: str, followed: Followed | None) -> Whereabouts:
        """Where a client is.

        Args:
            gateway: its id.
            client_id: the client's.
            followed: where it stands, if it is connected.
        """
        seen = self._seen.get((gateway, client_id))
        if seen is None or seen.since is None:
            return Whereabouts()
        return Whereabouts(
            seen.since if seen.repeats else seen.cursor,
            seen.since,
            knows_resync=seen.knows_resync,
            keeps_cursor=seen.repeats > 0,
            standing=None if seen.repeats or followed is None else followed.follower.standing,
            claims=seen.claims,
        )

    def _note(self, gateway: str, client_id: str) -> _Seen:
        key = (gateway, client_id)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = self._of.setdefault(gateway, {})[client_id] = _Seen()
            if len(self._seen) > REMEMBERED_CLIENTS:
                self._forget(*self._seen.popitem(last=False)[0])
        else:
            self._seen.move_to_end(key)
        return seen

    def _forget(self, gateway: str, client_id: str) -> None:
        mine = self._of[gateway]
        del mine[client_id]
        if not mine:
            del self._of[gateway]


def _sent(seen: _Seen, followed: Followed | None) -> object:
    """Another value once the client was sent something."""
    if followed is None or seen.repeats:
        return seen.sent
    return (seen.sent, followed.follower.standing, followed.owed)


def _is_told(seen: _Seen, followed: Followed | None) -> bool:
    """Whether the client is connected and was sent all that concerns it."""
    return followed is not None and not (followed.owed or followed.follower.more or seen.repeats)


def _holds(unsent: Unsent | None, shared: bool) -> bool:
    """Whether an answer is good until something is committed, or sent to the client here."""
    return unsent is None or (unsent.done and not (shared and unsent.since))


def _unsent_since(seen: _Seen, followed: Followed | None) -> int | None:
    """Arrival of the oldest change that the client was not sent; 0 where there is none; None: not looked at yet."""
    if _is_told(seen, followed):
        return 0
    unsent = seen.found.unsent if seen.found is not None else None
    return None if unsent is None else unsent.since


def _standing(name: str, seen: _Seen, followed: Followed | None, now: int) -> ClientStanding:
    cursor, has_more = seen.cursor or 0, seen.has_more
    follower = followed.follower if followed is not None else None
    if follower is not None and follower.cursor > cursor:
        cursor, has_more = follower.cursor, follower.more
    unsent = _unsent_since(seen, followed)
    since = wall_of(unsent) if unsent else None
    return ClientStanding(
        client_id=name,
        seen_ms=seen.seen_ms,
        offline_since_ms=None if followed is not None else seen.seen_ms,
        pulled_ms=seen.pulled_ms,
        pushed_ms=seen.pushed_ms,
        cursor_hlc=cursor,
        cursor_ms=wall_of(cursor) or None,
        has_more=has_more,
        unsent_since_ms=since,
        behind_ms=unsent if since is None else max(1, now - since),
        repeats=seen.repeats,
        connected=followed is not None,
    )


def _furthest_first(client: ClientStanding) -> tuple[float, int, str]:
    return (-inf if client.behind_ms is None else -client.behind_ms, client.cursor_hlc, client.client_id)
