"""Where a client is, as far as it was sent: what an explanation and a client's lag start from."""

from __future__ import annotations

from typing import NamedTuple

from lakesync.engine.access import RulesCache
from lakesync.engine.explanation import ClaimsSource
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.source_positions import resolve
from lakesync.engine.subscriptions import SubscriptionState, refreshed, subscriber_position
from lakesync.feed.memory import stranger, with_broadcasts
from lakesync.feed.positions import Access, Position, again, locate
from lakesync.model.client_ids import user_of
from lakesync.model.types import Claims
from lakesync.staging.records import ClientRecord
from lakesync.staging.store import View


class ClientPosition(NamedTuple):
    """Where a client is, as far as the process knows that it talks to; its record is not always as new."""

    cursor: int | None = None
    """What it was handed last and may be taken to have; None: what the record says."""
    confirmed: int | None = None
    """What it showed last, so that it has all that this stands for; None: what the record says."""
    knows_resync: bool = False
    """It takes an INSERT of a row that it has."""
    keeps_cursor: bool = False
    """It asks with `cursor` again and again, so it has not more, whatever it was sent."""
    state: SubscriptionState | None = None
    """Up to where it is told of what is new, while it is connected."""
    claims: Claims | None = None
    """Those of its last pull, of which a client that was never sent anything has no record."""


def claims_of(
    record: ClientRecord | None, client_id: str, where: ClientPosition, given: Claims | None = None
) -> tuple[ClaimsSource, Claims]:
    """A client's claims, and who says so.

    Args:
        record: what is kept of it.
        client_id: the client's.
        where: what more is known of it.
        given: claims that are to be tried instead.
    """
    found: list[tuple[ClaimsSource, Claims | None]] = [
        ("request", given),
        ("record", record.scopes[-1].claims if record is not None and record.scopes else None),
        ("pull", where.claims),
        ("client id", {}),
    ]
    source, claims = next((each, known) for each, known in found if known is not None)
    return source, {**claims, "sub": user_of(client_id)}


def position_of(
    view: View, known: ClientRecord | None, client_id: str, access: Access, rules: RulesCache, where: ClientPosition
) -> Position:
    """What the client has, once it has what it was sent.

    Args:
        view: the gateway.
        known: the client's record, `feed.memory.current`.
        client_id: the client's.
        access: what it may see.
        rules: the gateway's.
        where: what more is known of it.
    """
    cursor = where.cursor
    if where.state is not None:
        state = refreshed(view, where.state, rules)
        if not state.has_more and state.access is not None and state.access.keys == access.keys:
            return subscriber_position(state, state.access, view.arrival)
        cursor = state.cursor
    last = known.last if known is not None else 0
    if cursor is None or (last > cursor and not where.keeps_cursor):
        cursor = last  # another process may have sent it more
    if cursor == 0 and known is not None and known.wrote:
        cursor = NEVER_PULLED  # the answer to its push said so
    return place_at(view, known, client_id, cursor, access, where)


def place_at(
    view: View, known: ClientRecord | None, client_id: str, cursor: int, access: Access, where: ClientPosition
) -> Position:
    """What a pull from a cursor starts from; the arguments are those of `position_of`."""
    heard = known if known is None else with_broadcasts(known, view.arrival)
    at = locate(heard, resolve(known, cursor), view.arrival, access)
    if at is None:
        known = known or stranger(client_id, view.epoch, access.keys)
        at = again(known, view.arrival, access)
    return at._replace(haunted=known is not None and known.haunted and not where.knows_resync)
