"""How far a client was sent changes: explanations and the lag of clients start from it."""

from __future__ import annotations

from typing import NamedTuple

from lakesync.engine.access import RulesCache
from lakesync.engine.explanation import ClaimsSource
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.source_positions import resolve
from lakesync.engine.subscriptions import SubscriptionState, refreshed, subscriber_position
from lakesync.feed.client_state import unknown_client, with_broadcasts
from lakesync.feed.positions import Access, Position, for_full_pull, locate, restart_position
from lakesync.model.types import Claims
from lakesync.model.validation import user_of
from lakesync.staging.records import ClientRecord
from lakesync.staging.store.feed import ClientView


class ClientPosition(NamedTuple):
    """What the process that a client talks to knows of its cursor; the client's record may be older."""

    cursor: int | None = None
    """The latest cursor sent to it; None uses the record."""
    confirmed: int | None = None
    """The cursor of its latest pull, which confirms everything before it; None uses the record."""
    knows_resync: bool = False
    """Whether it accepts an INSERT of a row that it has."""
    keeps_cursor: bool = False
    """Whether it repeats its pull with `cursor`, so it has nothing beyond that, whatever it was sent."""
    state: SubscriptionState | None = None
    """Its subscription, while it is connected."""
    claims: Claims | None = None
    """The claims of its last pull; a client that was never sent anything has none in its record."""


def claims_of(
    record: ClientRecord | None, client_id: str, position: ClientPosition, given: Claims | None = None
) -> tuple[ClaimsSource, Claims]:
    """Return a client's claims and their source.

    Args:
        record: the client's.
        client_id: the client's id.
        position: what this process knows of it.
        given: claims of the request, which override the others.
    """
    found: list[tuple[ClaimsSource, Claims | None]] = [
        ("request", given),
        ("record", record.scopes[-1].claims if record is not None and record.scopes else None),
        ("pull", position.claims),
        ("client id", {}),
    ]
    source, claims = next((each, known) for each, known in found if known is not None)
    return source, {**claims, "sub": user_of(client_id)}


def position_of(
    view: ClientView,
    known: ClientRecord | None,
    client_id: str,
    access: Access,
    rules: RulesCache,
    position: ClientPosition,
) -> Position:
    """Return the feed position of a client that has received everything sent to it.

    Args:
        view: a consistent read of the gateway's store.
        known: the client's record, of `feed.client_state.current`.
        client_id: the client's id.
        access: the claims and bucket keys that decide what the client may see.
        rules: the gateway's cache of compiled sync rules.
        position: what this process knows of it.
    """
    cursor = position.cursor
    if position.state is not None:
        state = refreshed(view, position.state, rules)
        if not state.has_more and state.access is not None and state.access.keys == access.keys:
            return subscriber_position(state, state.access, view.arrival)
        cursor = state.cursor
    last = known.last if known is not None else 0
    if cursor is None or (last > cursor and not position.keeps_cursor):
        cursor = last  # another process may have sent it more
    if cursor == 0 and known is not None and known.wrote:
        cursor = NEVER_PULLED  # the cursor in the response to its push
    return place_at(view, known, client_id, cursor, access, position)


def place_at(
    view: ClientView, known: ClientRecord | None, client_id: str, cursor: int, access: Access, position: ClientPosition
) -> Position:
    """Return the feed position of a pull from a cursor; the other arguments are those of `position_of`."""
    with_sent = known if known is None else with_broadcasts(known, view.arrival)
    at = locate(with_sent, resolve(known, cursor), view.arrival, access)
    if at is None:
        known = known or unknown_client(client_id, view.epoch, access.keys)
        at = restart_position(known, view.arrival, access)
    if position.knows_resync:
        return for_full_pull(at)
    return at._replace(may_hold_unknown_rows=known is not None and known.may_hold_unknown_rows)
