"""All connections of one gateway: which of them a notice concerns, and what each of those lacks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import islice

import structlog

from gateway.clients import Followed
from gateway.live.closing import close_of
from gateway.live.connection import LiveConnection
from gateway.live.interests import Interests
from gateway.live.protocol import framed
from gateway.waiting import outcome
from lakesync.auth.keys import Key
from lakesync.engine import SyncGateway
from lakesync.engine.following import Follower, Found, Group, Standing
from lakesync.engine.greeting import Greeting, heard
from lakesync.model.errors import LakeSyncError, TransientError
from lakesync.model.types import SyncPull, SyncResponse
from lakesync.staging.notices import Notice
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame

log = structlog.get_logger("gateway")

_AT_ONCE = 256
"""Connections that one reading of the store looks at."""
_PULLS_AT_ONCE = 16
_AGAIN_SECONDS = 1.0
"""After the store failed."""


class Room:
    """Wakes the connections that a notice concerns and sends each what it lacks. Belongs to the event loop's thread."""

    def __init__(self, gateway: SyncGateway, count: Callable[[int], None]) -> None:
        """Args: count: told how many deltas were sent."""
        self._gateway = gateway
        self._count = count
        self._names: defaultdict[str, set[LiveConnection]] = defaultdict(set)
        """Each client's connections."""
        self._several: set[str] = set()
        """Clients with other connections, here or elsewhere."""
        self._connections: set[LiveConnection] = set()
        self._interests = Interests[LiveConnection]()
        self._unknown: set[LiveConnection] = set()
        """Those of whom nobody knows what concerns them: everything may."""
        self._rules = 0
        """Counts the changes after which nothing was known of anybody."""
        self._due: dict[LiveConnection, None] = {}
        """Those that may lack something, in the order in which they came to."""
        self._turn: list[LiveConnection] = []
        """Those of them that are being looked at."""
        self._pump: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def followed(self) -> dict[str, Followed]:
        """Where its clients stand, those that have pulled, and whether something may be on its way to them."""
        found = {}
        for each in self._connections:
            if each.follower is not None:
                owed = each in self._due or each in self._turn
                found[each.follower.client_id] = Followed(each.follower, owed)
        return found

    def held_by(self, client_id: str) -> int:
        """How many connections a client has here."""
        return len(self._names.get(client_id, ()))

    def enter(self, connection: LiveConnection) -> None:
        """A connection begins; it is told nothing until its client has pulled."""
        self._connections.add(connection)
        self._unknown.add(connection)
        self._names[connection.name].add(connection)
        self._recount(connection.name)

    def leave(self, connection: LiveConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._names[connection.name].discard(connection)
        self._recount(connection.name)
        self._unknown.discard(connection)
        self._interests.forget(connection)
        self._due.pop(connection, None)

    def hear(self, notice: Notice) -> None:
        """Commits have become visible."""
        if notice.buckets is None:
            self._rules += 1
            for connection in self._connections:
                connection.greeted = False  # nobody knows what was said meanwhile
            self._interests.clear()
            self._unknown |= self._connections
            concerned = alone = self._unknown
        else:
            concerned = self._interests.concerned(notice.buckets) | self._unknown
            alone = self._interests.concerned({bucket for bucket in notice.buckets if bucket.startswith("@")})
            concerned |= self._meet(heard(notice.buckets))
        for connection in alone:
            if connection.follower is not None:
                connection.follower.own = True
        self._due.update(dict.fromkeys(connection for connection in concerned if connection.follower is not None))
        self._run()

    def _meet(self, greetings: Iterable[Greeting]) -> set[LiveConnection]:
        """Those that learn of another connection of their client's, and have to say that they are there too."""
        met = {
            connection
            for greeting in greetings
            for connection in self._names.get(greeting.client_id, ())
            if connection.line != greeting.line and not connection.doubled
        }
        for connection in met:
            connection.doubled, connection.greeted = True, False
            self._recount(connection.name)
        return met

    def _recount(self, name: str) -> None:
        connections = self._names[name]
        if not connections:
            del self._names[name]
        if len(connections) > 1 or any(connection.doubled for connection in connections):
            self._several.add(name)
        else:
            self._several.discard(name)

    def changed(self, connection: LiveConnection) -> None:
        """A connection can be told something again, or its client has moved."""
        follower = connection.follower
        if follower is not None and (follower.standing.more or not follower.standing.interest.buckets):
            self._due[connection] = None
        if connection in self._due:
            self._run()

    def close(self, code: int, reason: str) -> None:
        """End every connection, after the answer that it may be waiting for."""
        for connection in list(self._connections):
            connection.close(code, reason)

    def close_signed_by(self, keys: frozenset[Key]) -> None:
        """End the connections whose token one of these keys has signed."""
        for connection in list(self._connections):
            connection.close_signed_by(keys)

    # -- what they lack ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._pump is None and self._next():
            self._pump = asyncio.ensure_future(self._serve())

    def _next(self) -> list[LiveConnection]:
        """Those whose turn it is."""
        return list(islice((each for each in self._due if each.ready), _AT_ONCE))

    async def _serve(self) -> None:
        """Look and tell until nobody who can be told lacks anything."""
        try:
            while turn := self._next():
                self._turn = turn
                for connection in turn:
                    del self._due[connection]
                try:
                    await self._greet(turn)
                    await self._follow(turn)
                    await self._look(turn)
                except Exception as error:
                    self._again(turn)
                    if isinstance(error, TransientError):
                        log.warning("broadcasts wait", gateway=self._gateway.gateway_id, reason=str(error))
                    else:
                        log.exception("broadcast failed", gateway=self._gateway.gateway_id)
                    await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._turn, self._pump = [], None

    async def _greet(self, turn: Sequence[LiveConnection]) -> None:
        """Name those to every process that it was not told of."""
        new = [(each, each.follower.client_id) for each in turn if each.follower is not None and not each.greeted]
        if not new or not self._gateway.shared:
            return
        for connection, _ in new:
            connection.greeted = True
        try:
            await outcome(self._gateway.submit_greetings([Greeting(name, each.line) for each, name in new]))
        except BaseException:
            for connection, _ in new:
                connection.greeted = False
            raise

    async def _follow(self, turn: Sequence[LiveConnection]) -> None:
        """Learn what those may see of whom that is not known."""
        new = [
            (each, each.follower, each.follower.standing)
            for each in turn
            if each.follower is not None and each.follower.standing.access is None and not each.follower.standing.more
        ]
        if not new:
            return
        rules = self._rules
        asked = [(follower.client_id, follower.claims, standing) for _, follower, standing in new]
        standings = await outcome(self._gateway.submit_follow(asked))
        for (connection, follower, before), standing in zip(new, standings, strict=True):
            if rules == self._rules and connection.follower is follower and follower.standing is before:
                self._know(connection, follower, standing)
                follower.standing = standing

    async def _look(self, turn: Sequence[LiveConnection]) -> None:
        """Find out what they lack, and tell them."""
        rules = self._rules
        alike: dict[Standing, list[tuple[LiveConnection, Follower]]] = defaultdict(list)
        for connection in turn:
            if connection.follower is not None:
                alike[connection.follower.standing].append((connection, connection.follower))
        groups = [self._group(standing, members) for standing, members in alike.items()]
        pulls: list[tuple[LiveConnection, Follower]] = []
        answers = await outcome(self._gateway.submit_look(groups))
        for group, found in zip(groups, answers, strict=True):
            pulls += self._answer(group, found, alike[group.standing], same_rules=rules == self._rules)
        await self._pull(pulls)

    def _answer(
        self, group: Group, found: Found, members: Sequence[tuple[LiveConnection, Follower]], *, same_rules: bool
    ) -> list[tuple[LiveConnection, Follower]]:
        """Tell the members of a group what they lack; those who have to be pulled for."""
        before, after = group.standing, found.standing
        shared = _broadcast(found.page, before) if found.page is not None and members else b""
        deltas = len(found.page.deltas) if found.page is not None else 0
        sent = 0
        pulls = []
        for connection, follower in members:
            stands = connection.follower is follower and follower.standing is before and connection.ready
            known = follower.client_id in group.doubled or follower.client_id not in self._several
            if not (stands and same_rules and known) or follower.own:  # heard of since: it may concern what was found
                follower.own |= follower.client_id in group.apart
                self._again((connection,))
                continue
            if follower.client_id in found.remembered:
                pulls.append((connection, follower))
                continue
            self._know(connection, follower, after)
            follower.standing = after
            if found.pull:
                pulls.append((connection, follower))
            elif follower.client_id in found.own:
                page = found.own[follower.client_id]
                if page is not None:
                    connection.tell(_broadcast(page, before))
                    sent += len(page.deltas)
            elif shared:
                connection.tell(shared)
                sent += deltas
        self._count(sent)
        return pulls

    def _group(self, standing: Standing, members: Sequence[tuple[LiveConnection, Follower]]) -> Group:
        clients, apart = set(), set()
        for _, follower in members:
            clients.add(follower.client_id)
            if follower.own:
                apart.add(follower.client_id)
                follower.own = False
        return Group(standing, frozenset(clients), frozenset(apart), frozenset(clients & self._several))

    async def _pull(self, pulls: Sequence[tuple[LiveConnection, Follower]]) -> None:
        """Send a page of their own to those who need one."""
        for place in range(0, len(pulls), _PULLS_AT_ONCE):
            part = [(*pull, pull[1].standing) for pull in pulls[place : place + _PULLS_AT_ONCE]]
            futures = [outcome(self._page(follower)) for _, follower, _ in part]
            for turn, page in zip(part, await asyncio.gather(*futures, return_exceptions=True), strict=True):
                self._send(*turn, page)

    def _page(self, follower: Follower) -> Future[SyncResponse]:
        pull = SyncPull(follower.client_id, follower.cursor, follower.standing.limit)
        return self._gateway.submit_pull(
            pull,
            follower.claims,
            resync_refused=follower.knows_resync,
            confirmed=False,
            unplaced=follower.standing.unplaced,
        )

    def _send(
        self, connection: LiveConnection, follower: Follower, before: Standing, page: SyncResponse | BaseException
    ) -> None:
        if isinstance(page, LakeSyncError) and not isinstance(page, TransientError):
            connection.close(*close_of(page))
        elif isinstance(page, BaseException):
            raise page
        elif not (connection.follower is follower and follower.standing is before and connection.ready):
            self._again((connection,))
        else:
            follower.after_page(page.server_hlc, more=page.has_more)
            if page.deltas:
                connection.tell(_broadcast(page, before))
                self._count(len(page.deltas))
            self._again((connection,))

    def _know(self, connection: LiveConnection, follower: Follower, standing: Standing) -> None:
        interest = standing.interest
        if connection in self._unknown or interest != follower.standing.interest:
            self._interests.put(connection, interest.buckets | {follower.own_bucket}, interest.prefixes)
            self._unknown.discard(connection)

    def _again(self, connections: Iterable[LiveConnection]) -> None:
        self._due.update(dict.fromkeys(each for each in connections if each in self._connections))


def _broadcast(page: SyncResponse, standing: Standing) -> bytes:
    """A page as a frame; without a cursor, which would pass what a client lacks, where nobody knows its own."""
    if standing.unplaced:
        page = SyncResponse(page.deltas, 0, page.has_more)
    return framed(encode_frame(FrameTag.BROADCAST, protobuf.encode_response(page)))
