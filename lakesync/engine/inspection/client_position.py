"""Computes a client's position: how far it was sent changes, and what it may have of the rows.

`inspection.explain` and `inspection.lag` call it; it records nothing. A *gateway* is one app's stream of changes, and
its *feed* has the rows in the order of their latest change. A *cursor* says up to where a client has it. The client's
*record*, what the store knows of it, is stored for pages that a client requests, but not for each broadcast on a
WebSocket: the process that the client is connected to knows these. A *bucket key* names a bucket of the sync rules with
the claims (fields of a token) that may see it. A *full pull* is all pages from cursor 0. The result, a
`feed.positions.Position`, says from where the client's next pull reads the feed, under which bucket keys, and which
rows the client may have from earlier pages.
"""

from __future__ import annotations

from typing import NamedTuple

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.inspection.explanation import ClaimsSource
from lakesync.engine.source_progress import feed_cursor
from lakesync.engine.subscribers import SubscriptionState
from lakesync.engine.subscriptions import refreshed, subscriber_position
from lakesync.feed.client_state import unknown_client, with_possible_broadcasts
from lakesync.feed.positions import NEVER_PULLED, Position, for_full_pull, locate, restart_position
from lakesync.feed.scopes import Access
from lakesync.model.types import Claims
from lakesync.model.validation import user_of
from lakesync.staging.records import ClientRecord
from lakesync.staging.store.feed import ClientView


class TrackedCursor(NamedTuple):
    """What this process of the gateway knows of a client's cursor; the client's stored record may be older.

    The gateway's `ClientTracker` makes it, from the client's requests to this process and its connection.
    """

    cursor: int | None = None
    """The latest cursor that the client was sent; None uses the record's."""
    confirmed: int | None = None
    """The cursor of the client's latest pull, which shows that it has everything up to it; None uses the record's."""
    knows_resync: bool = False
    """Whether the client understands the error RESYNC_REQUIRED, after which it pulls from 0. Then it accepts an INSERT
    of a row that it has, and removes the rows that a full pull did not contain."""
    keeps_cursor: bool = False
    """Whether the client has pulled from `cursor` more than once: it has not stored the pages that followed it."""
    state: SubscriptionState | None = None
    """The client's WebSocket subscription; None if it is not connected."""
    claims: Claims | None = None
    """The claims of the client's last pull, which the record of a client that was never sent anything lacks."""


def claims_of(
    record: ClientRecord | None, client_id: str, tracked: TrackedCursor, given: Claims | None = None
) -> tuple[ClaimsSource, Claims]:
    """Return the claims to use for a client, and where they are from: the first of several that are known.

    Args:
        record: the client's stored record; None if it has none.
        client_id: the client's id, from which the claim `sub` follows.
        tracked: what this process knows of the client.
        given: claims of the request, which override all others; None if the request has none.
    """
    candidates: list[tuple[ClaimsSource, Claims | None]] = [
        ("request", given),
        ("record", record.scopes[-1].claims if record is not None and record.scopes else None),
        ("pull", tracked.claims),
        ("client id", {}),
    ]
    source, claims = next((source, known) for source, known in candidates if known is not None)
    return source, {**claims, "sub": user_of(client_id)}


def position_of(
    view: ClientView,
    known: ClientRecord | None,
    client_id: str,
    access: Access,
    rules: RulesCache,
    tracked: TrackedCursor,
) -> Position:
    """Return the position of a client, assuming that it has received everything sent to it.

    Args:
        view: a consistent read of the gateway's store.
        known: the client's record, as returned by `feed.client_state.current_record`; None if it has none.
        client_id: the client's id.
        access: the claims and bucket keys that decide what the client may see.
        rules: the gateway's cache of compiled sync rules.
        tracked: what this process knows of the client.
    """
    cursor = tracked.cursor
    if tracked.state is not None:
        # its WebSocket delivers in order, so it has everything up to the cursor of the connection's state
        state = refreshed(view, tracked.state, rules)
        if not state.has_more and state.access is not None and state.access.keys == access.keys:
            return subscriber_position(state, state.access, view.arrival)
        cursor = state.cursor
    last = known.last_sent_cursor if known is not None else 0
    # Another process may have sent it more than this one knows. But a client that pulls from one cursor again and again
    # did not store the later pages, although its record has their cursor.
    if cursor is None or (last > cursor and not tracked.keeps_cursor):
        cursor = last
    if cursor == 0 and known is not None and known.has_pushed:
        # It pushed before its first pull. The response to the push gave it this cursor instead of 0, with which it
        # would first download a checkpoint.
        cursor = NEVER_PULLED
    return position_at(view, known, client_id, cursor, access, tracked)


def position_at(
    view: ClientView, known: ClientRecord | None, client_id: str, cursor: int, access: Access, tracked: TrackedCursor
) -> Position:
    """Return the position of a pull that the client would make from `cursor`.

    Args:
        view: a consistent read of the gateway's store.
        known: the client's record, as returned by `feed.client_state.current_record`; None if it has none.
        client_id: the client's id.
        cursor: the cursor; one that cannot be served makes the client start again.
        access: the claims and bucket keys that decide what the client may see.
        tracked: what this process knows of the client.
    """
    # broadcasts are not recorded, so the client may have been sent more than `known` says
    with_sent = known if known is None else with_possible_broadcasts(known, view.arrival)
    # `feed_cursor`: the client's cursor may be that of a page of a source (a database beside the gateway's feed)
    position = locate(with_sent, feed_cursor(known, cursor), view.arrival, access)
    if position is None:
        placeholder = unknown_client(client_id, view.epoch, access.keys, view.arrival)
        known = known or placeholder
        position = restart_position(with_sent or placeholder, view.arrival, access)
    if tracked.knows_resync:
        # it removes the rows that a full pull did not contain, so rows that the gateway never knew make no difference
        return for_full_pull(position)
    return position._replace(may_hold_unknown_rows=known is not None and known.may_hold_unknown_rows)
