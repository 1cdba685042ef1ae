"""All connections of one gateway: which of them a notice concerns, and what each of those lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import structlog

from gateway.live.closing import close_of
from gateway.live.connection import LiveConnection
from gateway.live.interests import Interests
from gateway.live.protocol import framed
from gateway.waiting import outcome
from lakesync.engine import SyncGateway
from lakesync.engine.following import Follower
from lakesync.exceptions import LakeSyncError, TransientError
from lakesync.staging.notices import Notice
from lakesync.types import SyncPull, SyncResponse
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame

log = structlog.get_logger("gateway")

_AT_ONCE = 256
"""Connections that one reading of the store looks at."""
_PULLS_AT_ONCE = 16
_AGAIN_SECONDS = 1.0
"""After the store failed."""


class _Turn(NamedTuple):
    """A connection whose turn it is, and where its client stood."""

    connection: LiveConnection
    follower: Follower

    @property
    def stands(self) -> bool:
        """Whether it can be told what was found for it."""
        return self.connection.follower is self.follower and self.connection.ready


class Room:
    """Wakes the connections that a notice concerns and sends each what it lacks. Belongs to the event loop's thread."""

    def __init__(self, gateway: SyncGateway) -> None:
        self._gateway = gateway
        self._connections: set[LiveConnection] = set()
        self._interests = Interests[LiveConnection]()
        self._unknown: set[LiveConnection] = set()
        """Those of whom nobody knows what concerns them: everything may."""
        self._rules = 0
        """Counts the changes after which nothing was known of anybody."""
        self._due: dict[LiveConnection, None] = {}
        """Those that may lack something, in the order in which they came to."""
        self._pump: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def followers(self) -> list[Follower]:
        """Where its clients stand, those that have pulled."""
        return [each.follower for each in self._connections if each.follower is not None]

    def enter(self, connection: LiveConnection) -> None:
        """A connection begins; it is told nothing until its client has pulled."""
        self._connections.add(connection)
        self._unknown.add(connection)

    def leave(self, connection: LiveConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._unknown.discard(connection)
        self._interests.forget(connection)
        self._due.pop(connection, None)

    def hear(self, notice: Notice) -> None:
        """Commits have become visible."""
        if notice.buckets is None:
            self._rules += 1
            self._interests.clear()
            self._unknown |= self._connections
            concerned = alone = self._unknown
        else:
            concerned = self._interests.concerned(notice.buckets) | self._unknown
            alone = self._interests.concerned({bucket for bucket in notice.buckets if bucket.startswith("@")})
        for connection in concerned:
            if connection.follower is not None:
                self._due[connection] = None
        for connection in alone:
            if connection.follower is not None:
                connection.follower = connection.follower._replace(own=True)
        self._run()

    def changed(self, connection: LiveConnection) -> None:
        """A connection can be told something again, or its client has moved."""
        follower = connection.follower
        if follower is not None and (follower.more or not follower.interest.buckets):
            self._due[connection] = None
        if connection in self._due:
            self._run()

    def close(self, code: int, reason: str) -> None:
        """End every connection, after the answer that it may be waiting for."""
        for connection in list(self._connections):
            connection.close(code, reason)

    # -- what they lack ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._pump is None and self._next():
            self._pump = asyncio.ensure_future(self._serve())

    def _next(self) -> list[_Turn]:
        """Those whose turn it is."""
        able = (_Turn(each, each.follower) for each in self._due if each.ready and each.follower is not None)
        return list(islice(able, _AT_ONCE))

    async def _serve(self) -> None:
        """Look and tell until nobody who can be told lacks anything."""
        try:
            while turns := self._next():
                for turn in turns:
                    del self._due[turn.connection]
                try:
                    await self._tell(turns)
                except Exception as error:
                    for turn in turns:
                        self._again(turn)
                    if isinstance(error, TransientError):
                        log.warning("broadcasts wait", gateway=self._gateway.gateway_id, reason=str(error))
                    else:
                        log.exception("broadcast failed", gateway=self._gateway.gateway_id)
                    await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._pump = None

    async def _tell(self, turns: Sequence[_Turn]) -> None:
        turns = await self._follow(turns)
        rules = self._rules
        found = await outcome(self._gateway.submit_look([turn.follower for turn in turns]))
        frames: dict[int, bytes] = {}
        pulls = []
        for turn, (follower, page, pull) in zip(turns, found, strict=True):
            if rules != self._rules or not turn.stands:
                self._again(turn)
                continue
            self._know(turn.connection, follower)
            turn.connection.follower = follower
            if pull:
                pulls.append(_Turn(turn.connection, follower))
            elif page is not None:
                if id(page) not in frames:
                    frames[id(page)] = _broadcast(page)
                turn.connection.tell(frames[id(page)], len(page.deltas))
        for place in range(0, len(pulls), _PULLS_AT_ONCE):
            part = pulls[place : place + _PULLS_AT_ONCE]
            pages = await asyncio.gather(*map(self._pull, part), return_exceptions=True)
            for turn, answer in zip(part, pages, strict=True):
                self._send(turn, answer)

    async def _follow(self, turns: Sequence[_Turn]) -> list[_Turn]:
        """The turns, with what those may see of whom that was not looked at yet."""
        new = [turn for turn in turns if turn.follower.access is None and not turn.follower.more]
        if new:
            rules = self._rules
            followers = await outcome(self._gateway.submit_follow([turn.follower for turn in new]))
            for turn, follower in zip(new, followers, strict=True):
                if rules == self._rules and turn.stands:
                    self._know(turn.connection, follower)
                    turn.connection.follower = follower
        return [_Turn(turn.connection, turn.connection.follower or turn.follower) for turn in turns]

    async def _pull(self, turn: _Turn) -> SyncResponse:
        follower = turn.follower
        pull = SyncPull(follower.client_id, follower.cursor, follower.limit)
        return await outcome(
            self._gateway.submit_pull(pull, follower.claims, resync_refused=follower.knows_resync, confirmed=False)
        )

    def _send(self, turn: _Turn, page: SyncResponse | BaseException) -> None:
        connection, follower = turn
        if isinstance(page, LakeSyncError) and not isinstance(page, TransientError):
            connection.close(*close_of(page))
        elif isinstance(page, BaseException):
            self._again(turn)
            raise page
        elif not turn.stands:
            self._again(turn)
        else:
            connection.follower = follower.after_page(page)
            if page.deltas:
                connection.tell(_broadcast(page), len(page.deltas))
            if page.has_more or follower.access is None:
                self._due[connection] = None

    def _know(self, connection: LiveConnection, follower: Follower) -> None:
        self._interests.put(connection, follower.interest.buckets | {follower.own_bucket}, follower.interest.prefixes)
        self._unknown.discard(connection)

    def _again(self, turn: _Turn) -> None:
        if turn.connection in self._connections:
            self._due[turn.connection] = None


def _broadcast(page: SyncResponse) -> bytes:
    return framed(encode_frame(FrameTag.BROADCAST, protobuf.encode_response(page)))
