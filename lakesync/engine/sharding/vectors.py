"""Stores, in the default shard, which cursor in each shard a client's cursor stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine import source_positions as sources
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.sharding.cursors import (
    BROADCAST_OFFSET,
    BROADCAST_RETENTION,
    adopt,
    confirm,
    find_vector,
    issue,
    next_above,
)
from lakesync.feed.client_state import current
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord
from lakesync.staging.records.clients import CursorVector
from lakesync.staging.store import TransactionStore, View
from lakesync.staging.store.feed import ClientView
from lakesync.staging.store.operations import SharedCursorCommit
from lakesync.staging.store.push import ClientCommit


class Place(NamedTuple):
    """A resolved cursor of a client."""

    record: ClientRecord | None
    """The client's record in the default shard."""
    asked: int
    """The cursor as it was sent; it may be that of a source."""
    since: int
    """The cursor of the gateway's own feed."""
    vector: CursorVector | None
    """The cursors in each shard; None if they are not known."""
    shared: bool = False
    """Whether the cursor was broadcast to many clients, and this client has not sent it before."""


class BroadcastCursor(NamedTuple):
    """A cursor to create for a broadcast to many clients."""

    above: int
    """The highest cursor of any of them."""
    parts: Mapping[str, int]
    """Cursor by shard."""


class Vectors:
    """The stored cursors of one gateway's clients."""

    def __init__(self, gateway_id: str, store: TransactionStore, wall: Callable[[], int]) -> None:
        """Create it over the default shard.

        Args:
            gateway_id: the gateway's id.
            store: of the default shard.
            wall: returns the server's wall time in milliseconds since 1970.
        """
        self._gateway_id = gateway_id
        self._store = store
        self._wall = wall

    def submit_place(self, client_id: str, cursor: int) -> Future[Place]:
        """Resolve a client's cursor."""
        return self._store.read(self._gateway_id, lambda view: _place(view, client_id, cursor))

    def submit_places(self, clients: Sequence[tuple[str, int]]) -> Future[list[Place]]:
        """Resolve the cursors of several clients, given as client id and cursor."""
        return self._store.read(
            self._gateway_id, lambda view: [_place(view, client_id, cursor) for client_id, cursor in clients]
        )

    def submit_share(self, wanted: Sequence[BroadcastCursor]) -> Future[list[int]]:
        """Create durable cursors, each for many clients."""
        now = self._wall()

        def work(commit: SharedCursorCommit) -> list[int]:
            cursors = []
            for each in wanted:
                cursor = next_above(max(each.above, commit.newest_shared_cursor()), now) + BROADCAST_OFFSET
                commit.put_shared_cursor(cursor, each.parts, forget_below=cursor - BROADCAST_RETENTION)
                cursors.append(cursor)
            return cursors

        return self._store.submit(self._gateway_id, work)

    def submit_parts(self, clients: Sequence[tuple[str, int | None]]) -> Future[list[dict[str, int] | None]]:
        """Return the cursors by shard that clients' cursors stand for; None if they are not known.

        Args:
            clients: client ids and cursors.
        """

        def look(view: View) -> list[dict[str, int] | None]:
            vectors = [_place(view, client_id, cursor).vector if cursor else None for client_id, cursor in clients]
            return [dict(vector.parts) if vector is not None else None for vector in vectors]

        return self._store.read(self._gateway_id, look)

    def submit_surely(self, client_id: str) -> Future[dict[str, int]]:
        """Return the cursors by shard of the last cursor that a client confirmed."""

        def look(view: ClientView) -> dict[str, int]:
            record = current(view.client(client_id), view.epoch)
            sent_cursors = record.sent_cursors if record is not None else None
            vector = find_vector(sent_cursors, sent_cursors.confirmed) if sent_cursors is not None else None
            return dict(vector.parts) if vector is not None else {}

        return self._store.read(self._gateway_id, look)

    def submit_issue(
        self,
        client_id: str,
        parts: Mapping[str, int],
        next_shard: str = "",
        came_from: Place | None = None,
        above: int = 0,
    ) -> Future[int]:
        """Create a durable cursor for one client.

        Args:
            client_id: the client's id.
            parts: cursor by shard.
            next_shard: shard at which the client's next page begins.
            came_from: the resolved cursor that the client sent, which confirms everything before it.
            above: a cursor that the client has; the new one is higher.
        """
        now = self._wall()

        def work(commit: ClientCommit) -> int:
            known = current(commit.client(client_id), commit.epoch)
            record = known or ClientRecord(client_id, commit.epoch, now)
            if came_from is not None:
                record = _after(record, came_from)
            sent_cursors, cursor = issue(record.sent_cursors, parts, next_shard, now, above)
            record = replace(record, sent_cursors=sent_cursors)
            if record != known:
                commit.put_client(record)
            return cursor

        return self._store.submit(self._gateway_id, work)


def _place(view: View, client_id: str, cursor: int) -> Place:
    record = current(view.client(client_id), view.epoch)
    since = sources.resolve(record, cursor)
    vector = find_vector(record.sent_cursors if record is not None else None, since)
    shared = view.shared_cursor(since) if vector is None and since % ARRIVAL_STEP == BROADCAST_OFFSET else None
    if shared is not None:
        vector = CursorVector(since, tuple(sorted(shared.items())))
    return Place(record, cursor, since, vector, shared is not None)


def _after(record: ClientRecord, place: Place) -> ClientRecord:
    """Return a client's record after it sent a cursor."""
    own = place.vector if place.shared else None
    record = replace(
        record,
        sent_cursors=confirm(record.sent_cursors, place.since) if own is None else adopt(record.sent_cursors, own),
    )
    if not record.sources:
        return record
    began_again = place.vector is None or (place.since <= NEVER_PULLED and record.sent_cursors is not None)
    return sources.started_again(record) if began_again else sources.after_request(record, place.asked)
