"""The cursors of a sharded gateway: each is one integer that names a *vector*: a cursor in each shard.

A *shard* is a staging store (a database that pushes are committed to) with some of the tables of a gateway, one app's
stream of changes. It has a *feed* of its own: its rows in order of their latest change. So a client's position is a
vector. The client's cursor, from which it pulls next, is an integer in the format of arrivals (milliseconds since 1970,
shifted by 16 bits), higher than its earlier ones. The *default shard*, which also has what belongs to no table, stores
the vectors: those of a client's newest cursors in the client's record. A *broadcast* (a page that the server sends to
many clients without a request) has one cursor for all of them, and its vector is in a table of its own. A cursor that
is in neither is unknown: the client has to start again. Two cursors need no vector: 0 (the client starts) and
`NEVER_PULLED` (1: it pushed before its first pull).

A *source* is a database from which clients pull beside the gateway's feed; a source's page has a cursor of its own, a
*mark*, which names a cursor of the feed. The other modules of this package call `Vectors`, whose `submit_…`
methods return futures. `docs/sharding.md` explains the promises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine import source_progress as sources
from lakesync.engine.active_rules import RulesCache
from lakesync.feed.client_state import current_record
from lakesync.feed.positions import NEVER_PULLED
from lakesync.model.hlc import start_of
from lakesync.model.types import Claims
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord
from lakesync.staging.records.clients import CursorVector, SentCursors
from lakesync.staging.store import TransactionStore, View
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.operations import SharedCursorCommit
from lakesync.staging.store.push import ClientCommit

MAX_VECTORS = 32
"""The most cursors of one client whose vectors are stored; the least recently used are removed."""

BROADCAST_OFFSET = 128
"""Broadcast cursors are a multiple of `ARRIVAL_STEP` plus this. A client's own cursors are a multiple, or one above. So
the number itself shows whether a cursor may have been broadcast."""

BROADCAST_RETENTION = (24 * 3_600_000) << 16
"""How long the vectors of broadcast cursors are stored: a day, as a difference of arrivals, whose lowest 16 bits count
within a millisecond. A client that comes back later still has its vector if it ever sent the cursor: then the vector
was copied to the client's record (`with_broadcast_cursor`)."""

MAX_AHEAD = 3_600_000 << 16
"""How far a client's cursor may be ahead of the clock so that new cursors exceed it: an hour, as a difference of
arrivals. One that is further ahead was not sent by the gateway. Broadcasts exceed the cursors of all clients. If they
exceeded this one too, the vectors of a day would be forgotten, or their cursors be above `MAX_HLC`."""

UNKNOWN_CURSOR = (1 << 40) + 1
"""The cursor that is passed to each shard for a client whose own cursor is unknown. It is below every arrival, and no
shard returns it, so that each shard treats the client as one that may have any row. It is above `NEVER_PULLED` (1)."""


class ResolvedCursor(NamedTuple):
    """A cursor that a client sent, with its meaning."""

    record: ClientRecord | None
    """The client's record in the default shard; None if it has none."""
    requested: int
    """The cursor as the client sent it; it may be the mark of a source's page."""
    feed_cursor: int
    """The cursor of the gateway's own feed that it means."""
    vector: CursorVector | None
    """The cursor in each shard; None if it is not known."""
    is_broadcast: bool = False
    """Whether the cursor was broadcast to many clients, and this client has not sent it before. Its vector is then in
    the shared table, and not in the client's record."""


class BroadcastCursor(NamedTuple):
    """A cursor to create for a broadcast to many clients."""

    above: int
    """The highest cursor of any of these clients; the new one is higher."""
    parts: Mapping[str, int]
    """The vector: the cursor in each shard, by shard name."""


class IssuedCursor(NamedTuple):
    """A cursor that was created for one client."""

    cursor: int
    record: ClientRecord
    """The client's record in the default shard, as it was stored with the cursor."""


class Vectors:
    """Resolves and creates the cursors of one gateway's clients."""

    def __init__(self, gateway_id: str, store: TransactionStore, wall: Callable[[], int], rules: RulesCache) -> None:
        """Create it over the default shard.

        Args:
            gateway_id: the gateway's id.
            store: the default shard's store.
            wall: returns the server's wall time in milliseconds since 1970.
            rules: the gateway's cache of compiled sync rules.
        """
        self._gateway_id = gateway_id
        self._store = store
        self._wall = wall
        self._rules = rules

    def submit_resolve(self, client_id: str, cursor: int) -> Future[ResolvedCursor]:
        """Look up what a cursor that a client sent means; nothing is stored.

        Args:
            client_id: the client's id.
            cursor: the cursor that the client sent.
        """
        return self._store.read(self._gateway_id, lambda view: _resolve(view, client_id, cursor))

    def submit_resolve_all(self, clients: Sequence[tuple[str, int]]) -> Future[list[ResolvedCursor]]:
        """Look up the cursors of several clients at once, given as pairs of client id and cursor."""
        return self._store.read(
            self._gateway_id, lambda view: [_resolve(view, client_id, cursor) for client_id, cursor in clients]
        )

    def submit_issue_broadcast(self, requests: Sequence[BroadcastCursor]) -> Future[list[int]]:
        """Create cursors for broadcasts, and store their vectors, because the clients' records do not have them.

        Args:
            requests: the vectors, each with the cursor that the new one must exceed.

        Returns:
            A future of the cursors, in the order of `requests`.
        """
        now_ms = self._wall()

        def create(commit: SharedCursorCommit) -> list[int]:
            cursors = []
            for each in requests:
                cursor = next_above(max(each.above, commit.newest_shared_cursor()), now_ms) + BROADCAST_OFFSET
                commit.put_shared_cursor(cursor, each.parts, forget_below=cursor - BROADCAST_RETENTION)
                cursors.append(cursor)
            return cursors

        return self._store.submit(self._gateway_id, create)

    def submit_vectors(self, clients: Sequence[tuple[str, int | None]]) -> Future[list[dict[str, int] | None]]:
        """Return the vectors that clients' cursors name; nothing is stored.

        Args:
            clients: pairs of client id and cursor; a cursor may be 0 or None.

        Returns:
            A future of the vectors, in the order of `clients`; None for a cursor that is 0, None or unknown.
        """

        def read(view: View) -> list[dict[str, int] | None]:
            vectors = [_resolve(view, client_id, cursor).vector if cursor else None for client_id, cursor in clients]
            return [dict(vector.parts) if vector is not None else None for vector in vectors]

        return self._store.read(self._gateway_id, read)

    def submit_confirmed(self, client_id: str) -> Future[dict[str, int]]:
        """Return the vector of the last cursor that a client sent, by shard name; empty if it sent no known one."""

        def read(view: ClientView) -> dict[str, int]:
            record = current_record(view.client(client_id), view)
            sent_cursors = record.sent_cursors if record is not None else None
            vector = find_vector(sent_cursors, sent_cursors.confirmed) if sent_cursors is not None else None
            return dict(vector.parts) if vector is not None else {}

        return self._store.read(self._gateway_id, read)

    def submit_issue(
        self,
        client_id: str,
        claims: Claims,
        parts: Mapping[str, int],
        next_shard: str = "",
        confirms: ResolvedCursor | None = None,
        above: int = 0,
    ) -> Future[IssuedCursor]:
        """Create a cursor for one client, and store its vector in the client's record.

        Args:
            client_id: the client's id.
            claims: the verified claims of the client's token.
            parts: the vector: the cursor in each shard, by shard name.
            next_shard: the shard at which the client's next page begins; empty for any.
            confirms: the cursor that the client sent, which shows that it has everything up to it. None if it sent
                none itself: for a page that the server sends without a request, or for the response to a push.
            above: a cursor that the client has; the new one is higher. 0 for none.
        """
        now_ms = self._wall()

        def create(commit: ClientCommit) -> IssuedCursor:
            known = self._rules.record(commit, client_id, claims)
            record = known or ClientRecord(client_id, commit.epoch, now_ms)
            if confirms is not None:
                record = _after_request(record, confirms)
            sent_cursors, cursor = issue(record.sent_cursors, parts, next_shard, now_ms, above)
            record = replace(record, sent_cursors=sent_cursors)
            if record != known:
                commit.put_client(record)
            return IssuedCursor(cursor, record)

        return self._store.submit(self._gateway_id, create)


def find_vector(sent_cursors: SentCursors | None, cursor: int) -> CursorVector | None:
    """Return the vector of a cursor; None if it is not known. Cursor 0 is the start of every shard's feed.

    Args:
        sent_cursors: the client's stored cursors; None if it has none.
        cursor: the cursor that the client sent.
    """
    if cursor == 0:
        return CursorVector(0, ())
    known = sent_cursors.vectors if sent_cursors is not None else ()
    return next((vector for vector in reversed(known) if vector.cursor == cursor), None)


def confirm(sent_cursors: SentCursors | None, cursor: int) -> SentCursors | None:
    """Record that the client sent a cursor, so that its vector is not removed until it sends another one.

    Args:
        sent_cursors: the client's stored cursors; None if it has none.
        cursor: the cursor that the client sent; an unknown one changes nothing.
    """
    if sent_cursors is None:
        return None
    newest = sent_cursors.vectors[-1].cursor if sent_cursors.vectors else None  # used last, so it is removed last
    if sent_cursors.confirmed == newest == cursor:
        return sent_cursors
    matching = [vector for vector in sent_cursors.vectors if vector.cursor == cursor]
    others = [vector for vector in sent_cursors.vectors if vector.cursor != cursor]
    return replace(sent_cursors, confirmed=cursor, vectors=(*others, *matching)) if matching else sent_cursors


def issue(
    sent_cursors: SentCursors | None, parts: Mapping[str, int], next_shard: str, now_ms: int, above: int = 0
) -> tuple[SentCursors, int]:
    """Create a cursor, or reuse the client's highest one if it has the same vector.

    A cursor in the middle of a client's pages is no multiple of `ARRIVAL_STEP`. If that is so in any shard, the new
    cursor is one above a multiple.

    Args:
        sent_cursors: the client's stored cursors; None if it has none.
        parts: the vector: the cursor in each shard, by shard name.
        next_shard: the shard at which the client's next page begins; empty for any.
        now_ms: server wall time in milliseconds since 1970.
        above: a cursor that the client has, which may be a broadcast one; the new one is higher, unless it is unknown
            and more than `MAX_AHEAD` ahead of the clock. 0 for none.

    Returns:
        The updated cursors, and the new one.
    """
    known = sent_cursors or SentCursors(0)
    if above > max(known.highest, start_of(now_ms) + MAX_AHEAD):
        above = 0
    wanted = tuple(sorted(parts.items()))
    # The same vector needs no new cursor. Only the highest one is reused, because a client's cursor must not decrease.
    for vector in known.vectors:
        if vector.cursor == known.highest >= above and (vector.parts, vector.next_shard) == (wanted, next_shard):
            return known, vector.cursor
    cursor = next_above(max(known.highest, above), now_ms)
    if any(part % ARRIVAL_STEP for part in parts.values()):
        cursor += 1
    return _with_vector(replace(known, highest=cursor), CursorVector(cursor, wanted, next_shard)), cursor


def with_broadcast_cursor(sent_cursors: SentCursors | None, vector: CursorVector) -> SentCursors:
    """Add the vector of a broadcast cursor to the client's own, because the client sent that cursor.

    Args:
        sent_cursors: the client's stored cursors; None if it has none.
        vector: the broadcast cursor and its vector.
    """
    known = sent_cursors or SentCursors(0)
    return _with_vector(replace(known, highest=max(known.highest, vector.cursor), confirmed=vector.cursor), vector)


def next_above(cursor: int, now_ms: int) -> int:
    """Return the next multiple of `ARRIVAL_STEP` above an earlier cursor, and not below the wall time `now_ms`.

    Args:
        cursor: the earlier cursor; 0 for none.
        now_ms: server wall time in milliseconds since 1970.
    """
    return max(cursor // ARRIVAL_STEP * ARRIVAL_STEP + ARRIVAL_STEP, start_of(now_ms))


def _with_vector(sent_cursors: SentCursors, vector: CursorVector) -> SentCursors:
    """Return a client's cursors with one more, with its vector.

    Above `MAX_VECTORS` the oldest are removed, but not that of `confirmed`: the client sends that cursor again if the
    response that replaces it is lost.
    """
    vectors = [*sent_cursors.vectors, vector]
    surplus = len(vectors) - MAX_VECTORS
    if surplus > 0:
        removed = [each.cursor for each in vectors if each.cursor != sent_cursors.confirmed][:surplus]
        vectors = [each for each in vectors if each.cursor not in removed]
    return replace(sent_cursors, vectors=tuple(vectors))


def _resolve(view: View, client_id: str, cursor: int) -> ResolvedCursor:
    """Return what a cursor that a client sent means: a source's mark, its own cursor, or a broadcast cursor.

    Args:
        view: a consistent read of the default shard.
        client_id: the client's id.
        cursor: the cursor, as the client sent it.
    """
    record = current_record(view.client(client_id), view)
    feed_cursor = sources.feed_cursor(record, cursor)
    vector = find_vector(record.sent_cursors if record is not None else None, feed_cursor)
    may_be_broadcast = vector is None and feed_cursor % ARRIVAL_STEP == BROADCAST_OFFSET
    parts = view.shared_cursor(feed_cursor) if may_be_broadcast else None
    if parts is not None:
        vector = CursorVector(feed_cursor, tuple(sorted(parts.items())))
    return ResolvedCursor(record, cursor, feed_cursor, vector, parts is not None)


def _after_request(record: ClientRecord, sent: ResolvedCursor) -> ClientRecord:
    """Return a client's record after the client sent a cursor.

    The cursor's vector is kept from now on. If the cursor shows that the client starts again, its positions in sources
    are reset; otherwise the cursor may confirm a page of a source.

    Args:
        record: the client's record.
        sent: the cursor, which may have been resolved in an earlier transaction.
    """
    broadcast = sent.vector if sent.is_broadcast else None  # the vector moves from the shared table into the record
    record = replace(
        record,
        sent_cursors=confirm(record.sent_cursors, sent.feed_cursor)
        if broadcast is None
        else with_broadcast_cursor(record.sent_cursors, broadcast),
    )
    if not record.sources:
        return record
    # its cursor is unknown; or it has none, although it was sent some, so that it lost its database
    starts_again = sent.vector is None or (sent.feed_cursor <= NEVER_PULLED and record.sent_cursors is not None)
    return sources.with_restart(record) if starts_again else sources.after_request(record, sent.requested)
