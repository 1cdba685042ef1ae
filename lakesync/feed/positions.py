"""Computes what a client's cursor means: its feed position, what the client had there, and what it was sent since.

`engine.pulling` calls `locate` for every pull; `feed.pull` and `feed.row_presence` read the `Position`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from lakesync.model.types import Claims
from lakesync.model.validation import MAX_HLC
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord, Page, PastKey, Scope, StoredRow

NOTHING = -1
"""Base of a client that began with no rows, or with unknown ones."""

SCOPES_KEPT = 8
"""Number of newest scopes that a client's record always has."""

Range = tuple[int, int]
"""A range of the feed: above the first and up to the second arrival."""


class Access(NamedTuple):
    """What a client may see now."""

    claims: Claims
    """The claims that the rules read."""
    keys: frozenset[str]
    rules_version: int
    directly: Callable[[StoredRow], bool] | None = None
    """While a re-index is running: returns whether the active rules show the client a row."""

    def sees(self, row: StoredRow) -> bool:
        """Return whether the client may see the row as it is now."""
        return self.shows(row) or (self.directly is not None and self.directly(row))

    def shows(self, row: StoredRow) -> bool:
        """Return whether it may see the row by the row's bucket keys, under which later changes sent it too."""
        return any(key in self.keys for key in row.keys)

    def same_as(self, scope: Scope) -> bool:
        """Return whether a scope has these claims and rules."""
        return scope.rules_version == self.rules_version and scope.claims == self.claims

    def resets(self, scope: Scope, *, asked: bool) -> bool:
        """Return whether it is unknown what a client has that may have been sent pages in this scope since its cursor.

        When a client applies a page of another token, it sends that page's cursor in its next request; until then, the
        page's rows count as possibly there. This does not hold for pages without a cursor, nor for pages under other
        rules, which may have the same token and cross a pull.

        Args:
            scope: in which it may have been sent pages.
            asked: whether the client sent the cursor itself. A connection's own cursor covers all pages sent on it.
        """
        return not self.same_as(scope) and (scope.rules_version != self.rules_version or (asked and scope.loose))


class SentPeriod(NamedTuple):
    """A period in which a client was sent rows under one bucket key, as arrivals."""

    at: int
    """The newest arrival when it was first sent any."""
    upserted_up_to: int
    """No INSERT or UPDATE was sent at a later feed position."""
    ended_at: int
    """The newest arrival when it was first sent something under other claims."""


class Position(NamedTuple):
    """Where a pull starts. Fields that `Page` has too have the same meaning."""

    after: int
    base: int
    until: int
    resync: bool
    origin: int
    """Number of the scope at `base`; 0 without a base."""
    old_keys: frozenset[str]
    """The bucket keys that were active at `base`."""
    new_keys: frozenset[str]
    """The bucket keys that are active now."""
    sent: Mapping[str, Sequence[SentPeriod]]
    """What the client may have been sent since `base`, by bucket key; if it starts again, what it was ever sent."""
    sent_up_to: int
    """No row was sent since `base` at a later feed position, under any key."""
    exact: bool = True
    """Whether it was sent nothing beyond this cursor."""
    transition_at: int = 0
    rescan: tuple[Range, ...] = ()
    rescan_first: bool = True
    may_hold_unknown_rows: bool = False
    """It may have rows that the gateway never knew, so no row is certainly new to it."""
    no_retry: bool = False
    """Changes that it fails to apply are not sent again. It may have missed a DELETE that way, or skipped one because
    of an edit of its own: no row that was ever removed is certainly new to it."""
    own_writes_up_to: int | None = None
    """Of its own writes, it has none above this hlc; None: it has all."""
    wrote: bool = False
    """Whether it ever pushed."""

    @property
    def moved(self) -> bool:
        """Whether other keys are active than at `base`: the pages are a transition between them."""
        return self.old_keys != self.new_keys and not self.resync


def locate(
    record: ClientRecord | None, since: int, newest: int, access: Access, line: Claims | None = None
) -> Position | None:
    """Return the position of a cursor; None if it cannot be served (L11) and the client must start from cursor 0.

    Args:
        record: the client's record in this epoch; without one, it has nothing at cursor 0.
        since: the cursor.
        newest: the newest arrival.
        access: the claims and bucket keys that decide what the client may see.
        line: the claims of the connection whose own cursor this is; None if the client sent the cursor.
    """
    if record is None:
        return _at_start(None, newest, access, resync=False) if since == 0 else None
    if since <= 1:
        was_sent_rows = max_sent(record.scopes) > 0 or record.past or (record.wrote and since == 0)
        return _at_start(record, newest, access, resync=bool(was_sent_rows))
    page = next((page for page in record.pages if page.cursor == since), None)
    if page is not None:
        return _in_walk(record, page, newest, access, asked=line is None)
    scope = scope_of(record, since, line) if since < newest + ARRIVAL_STEP else None
    return _at_complete_cursor(record, scope, since, newest, access, asked=line is None) if scope is not None else None


def restart_position(record: ClientRecord, newest: int, access: Access) -> Position:
    """Return the position of a client that starts again and may have any row: each is sent as DELETE and INSERT."""
    return _at_start(record, newest, access, resync=True)


def for_full_pull(at: Position) -> Position:
    """Return the position of a client that handles a full pull: at its end, it removes rows that it was not sent.

    So it needs no DELETE of rows from before a rebuild, and is sent no id of them. A past key without an end also
    covers rows that came into the bucket after the client could not see it any more.
    """
    if not at.resync:
        return at
    ended = {key: [sent for sent in times if sent.upserted_up_to < MAX_HLC] for key, times in at.sent.items()}
    return at._replace(sent={key: times for key, times in ended.items() if times})


def scope_of(record: ClientRecord, cursor: int, line: Claims | None = None) -> Scope | None:
    """Return the scope of a complete cursor.

    Args:
        record: the client's.
        cursor: a cursor that was sent.
        line: the claims of the connection that it belongs to, if other connections are sent cursors too.
    """
    for scope in reversed(record.scopes):
        if line is not None and any(line.get(name) != value for name, value in scope.claims.items()):
            continue
        if scope.start == cursor or (0 <= scope.start < cursor and cursor % ARRIVAL_STEP == 0):
            return scope if not scope.end or cursor < scope.end else None
    return None


def later_scopes(record: ClientRecord, scope: Scope) -> list[Scope]:
    """Return the scopes after this one."""
    return [later for later in record.scopes if later.number > scope.number]


def is_complete_page(page: Page) -> bool:
    """Return whether the client had exactly what it could see there."""
    return page.after == page.base and page.base_scope == page.scope and not page.rescan


def max_sent(scopes: Iterable[Scope | PastKey]) -> int:
    """Return the latest feed position at which a row was sent in any of the scopes."""
    return max((scope.sent_up_to for scope in scopes), default=0)


def _at_start(record: ClientRecord | None, newest: int, access: Access, *, resync: bool) -> Position:
    """Return the position of a client before all rows.

    Args:
        record: the client's record; None if it has none.
        newest: the newest arrival.
        access: the claims and bucket keys that decide what the client may see.
        resync: whether it may have any row. Otherwise it was sent nothing and can have only its own writes.
    """
    past, scopes = (record.past, record.scopes) if record is not None else ((), ())
    sent, sent_up_to = _sent_periods(past, scopes, MAX_HLC)
    return Position(
        0,
        NOTHING,
        newest,
        resync=resync,
        origin=0,
        old_keys=frozenset() if resync else access.keys,
        new_keys=access.keys,
        sent=sent,
        sent_up_to=sent_up_to,
        wrote=record is not None and record.wrote,
    )


def _at_complete_cursor(
    record: ClientRecord, scope: Scope, since: int, newest: int, access: Access, *, asked: bool
) -> Position:
    """Return the position at a complete cursor: the client has exactly what it could see then."""
    later = later_scopes(record, scope)
    if any(access.resets(other, asked=asked) for other in later):
        return restart_position(record, newest, access)
    sent, sent_up_to = _since(record, since, scope)
    exact = sent_up_to <= since and not any(other.sent_up_to for other in later)
    old_keys, new_keys = _keys(scope, scope, access)
    moved = old_keys != new_keys
    return Position(
        after=since,
        base=since,
        until=newest if exact else since,
        resync=False,
        origin=scope.number,
        old_keys=old_keys,
        new_keys=new_keys,
        sent=sent,
        sent_up_to=sent_up_to,
        exact=exact,
        transition_at=since if moved else 0,
        rescan=((0, since),) if moved else (),
    )


def _in_walk(record: ClientRecord, page: Page, newest: int, access: Access, *, asked: bool) -> Position:
    """Return the position at a page mark: the client has what it had at the base, and what it was sent since."""
    walk = numbered(record, page.scope)
    origin = numbered(record, page.base_scope) if page.base_scope else walk
    if walk is None or origin is None:
        return restart_position(record, newest, access)
    same = access.same_as(walk)
    if any(access.resets(other, asked=asked) for other in later_scopes(record, walk)) or (
        not same and (page.resync or origin is not walk)
    ):
        return restart_position(record, newest, access)
    if page.resync:
        anew = restart_position(record, newest, access)
        return anew._replace(after=page.after, until=page.until, rescan=page.rescan, rescan_first=page.rescan_first)
    old_keys, new_keys = _keys(origin, walk, access)
    begins = not same and old_keys != new_keys
    exact = page.serial == record.pages_sent
    sent, sent_up_to = _since(record, page.base, origin)
    return Position(
        after=page.after,
        base=page.base,
        until=newest if exact and is_complete_page(page) else page.until,
        resync=False,
        origin=page.base_scope or (walk.number if begins else 0),
        old_keys=old_keys,
        new_keys=new_keys,
        sent=sent,
        sent_up_to=sent_up_to,
        exact=exact,
        transition_at=min((low for low, _ in page.rescan), default=page.after) if begins else page.transition_at,
        rescan=((0, page.after),) if begins else page.rescan,
        rescan_first=page.rescan_first or begins,
        wrote=record.wrote,
    )


def _keys(origin: Scope, walk: Scope, access: Access) -> tuple[frozenset[str], frozenset[str]]:
    """Return the keys active at the base, and now.

    Keys that came into use under the same claims and rules count as both.
    """
    old_keys = frozenset(origin.keys)
    if origin is walk and access.same_as(walk):
        return old_keys | access.keys, old_keys | access.keys
    return old_keys, access.keys


def numbered(record: ClientRecord, number: int) -> Scope | None:
    """Return a scope by its number; None if it was removed."""
    return next((scope for scope in record.scopes if scope.number == number), None)


def _since(record: ClientRecord, base: int, origin: Scope) -> tuple[dict[str, list[SentPeriod]], int]:
    """Return what the client may have been sent since a base in the scope `origin`.

    It may have written rows under keys of a scope that was removed since the base: these keys are included, even if the
    client was sent nothing there. Past keys without an end cover what it was sent before it reached any complete
    cursor.
    """
    removed = record.scopes[-SCOPES_KEPT].at if len(record.scopes) >= SCOPES_KEPT else 0  # all ended by then
    past = [past for past in record.past if base < max(past.sent_up_to, removed) and past.sent_up_to < MAX_HLC]
    scopes = record.scopes if base == NOTHING else [origin, *later_scopes(record, origin)]
    return _sent_periods(past, scopes, removed)


def _sent_periods(
    past: Iterable[PastKey], scopes: Iterable[Scope], removed: int
) -> tuple[dict[str, list[SentPeriod]], int]:
    """Return what a client was sent by key, and the latest feed position at which it was sent a row or a DELETE.

    The position in a scope without keys counts too: its client was sent DELETEs.

    Args:
        past: keys of removed scopes.
        scopes: stored scopes, in their order.
        removed: arrival by which every removed scope had ended.
    """
    past, scopes = list(past), list(scopes)
    sent: dict[str, list[SentPeriod]] = {}
    for key in past:
        if key.key:
            sent.setdefault(key.key, []).append(SentPeriod(key.at, key.sent_up_to, removed))
    ends = [*(scope.at for scope in scopes[1:]), MAX_HLC]
    for scope, end in zip(scopes, ends, strict=False):
        for name in scope.keys:
            sent.setdefault(name, []).append(SentPeriod(scope.at, scope.reached, end))
    return sent, max(max_sent(past), max_sent(scopes))
