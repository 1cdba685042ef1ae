"""Reads pages of the rows that a token's *claims* (fields) may see, without a client's record.

A *page* has deltas: changes of rows, or the rows themselves as INSERTs. A client's *record* would say what the client
was sent. `SyncGateway.submit_peek` calls it for `lakesync pull`, which must not affect what the app with the same token
is sent. Nothing is stored. So the *cursor*, from which the next page is read, itself contains everything that the next
page needs. It is text, and valid only with the same claims. A *gateway* is one app's stream of changes. An *arrival* is
its own timestamp of a commit. The sync *rules* decide which rows claims may see.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from lakesync.engine.active_rules import RulesCache
from lakesync.feed.positions import Position, SentPeriod
from lakesync.feed.pull import MAX_PAGE_BYTES, NO_CLIENT, pull_page
from lakesync.feed.scopes import Access
from lakesync.model.errors import ResyncRequiredError, ValidationError
from lakesync.model.types import Claims, RowDelta
from lakesync.staging.records import NO_BASE
from lakesync.staging.store.feed import ClientView

NOW = "now"
"""What a caller passes instead of a cursor to get only later changes."""
_CURSOR = re.compile(r"(?:([0-9]{1,18})\.)?([0-9]{1,18})-([0-9]{1,18})(?:-([0-9]{1,18})-([0-9]{1,18}))?")
"""`EPOCH.RULES_VERSION-AFTER`, and between pages also `-BASE-UNTIL`: the fields of `_PeekCursor`. BASE is the field
plus one, so that it is never negative. Earlier versions returned cursors without EPOCH."""


class PeekPage(NamedTuple):
    """A page of rows or changes."""

    deltas: Sequence[RowDelta]
    cursor: str
    """The cursor from which the next page is read."""
    has_more: bool
    """Whether more pages follow now; if not, the cursor returns later changes."""


def peek(
    view: ClientView, claims: Claims, since: str | None, limit: int, rules: RulesCache, max_bytes: int = MAX_PAGE_BYTES
) -> PeekPage:
    """Return a page of the rows that claims may see, or of their changes.

    Args:
        view: a consistent read of the gateway's store.
        claims: the verified claims of a client's token.
        since: the cursor that the previous page returned; None for all rows, `now` for later changes only.
        limit: deltas at which the page is full, from 1 to `MAX_PULL`; a page contains whole rows.
        rules: the gateway's cache of compiled sync rules.
        max_bytes: bytes of rows at which the page is full.

    Returns:
        The page; with `now`, one without deltas.

    Raises:
        ValidationError: the cursor is not one of `peek`.
        ResyncRequiredError: the rules changed since the cursor was returned, or the store was replaced.
    """
    access = rules.access(view, claims)
    if since == NOW:
        return PeekPage((), _end(view, access).text(), has_more=False)
    cursor = _parse(since) if since is not None else _PeekCursor(view.epoch, access.rules_version, 0)
    if not cursor.is_possible(view, access):
        raise ResyncRequiredError(
            f"the rules or the store changed since the cursor {since!r} was returned: read again without it"
        )
    until = view.arrival if cursor.until is None else cursor.until
    page = pull_page(view, NO_CLIENT, _position(cursor, access, until), access, limit, max_bytes=max_bytes)
    next_cursor = cursor._replace(after=page.read_up_to, until=until) if page.has_more else _end(view, access)
    return PeekPage(page.deltas, next_cursor.text(), page.has_more)


def invalid_cursor(since: str) -> ValidationError:
    """Return the ValidationError for a cursor that `peek` did not return; the caller raises it."""
    return ValidationError(
        f"since is {since[:60]!r}, which is not a cursor of this route: omit it in the first request"
    )


class _PeekCursor(NamedTuple):
    """A decoded cursor."""

    epoch: int
    """The store's epoch, which changes when the store is rebuilt: it may then lack rows that were returned before."""
    rules_version: int
    """Version of the rules under which it was returned."""
    after: int
    """Everything up to this arrival was returned."""
    base: int = NO_BASE
    """The `base` of the pages: the arrival after which they begin; `NO_BASE` if they began with all rows."""
    until: int | None = None
    """The newest arrival when the pages began; None after the last page."""

    def text(self) -> str:
        """Return the cursor as `_CURSOR` describes it."""
        rest = "" if self.until is None else f"-{self.base - NO_BASE}-{self.until}"
        return f"{self.epoch}.{self.rules_version}-{self.after}{rest}"

    def is_possible(self, view: ClientView, access: Access) -> bool:
        """Return whether `peek` may have returned this cursor from the same store under the active rules."""
        is_in_feed = max(self.after, self.until or 0) <= view.arrival and self.base <= self.after
        return (self.epoch, self.rules_version) == (view.epoch, access.rules_version) and is_in_feed


def _end(view: ClientView, access: Access) -> _PeekCursor:
    """Return the cursor after the last page."""
    return _PeekCursor(view.epoch, access.rules_version, view.arrival, view.arrival)


def _parse(since: str) -> _PeekCursor:
    """Decode a cursor's text; raises ValidationError for any other text."""
    match = _CURSOR.fullmatch(since)
    if match is None:
        raise invalid_cursor(since)
    epoch, rules_version, after, base, until = match.groups()
    origin = (int(epoch or 0), int(rules_version), int(after))
    return _PeekCursor(*origin, int(after)) if base is None else _PeekCursor(*origin, int(base) + NO_BASE, int(until))


def _position(cursor: _PeekCursor, access: Access, until: int) -> Position:
    """Return the position of a reader that has everything up to a cursor, and nothing after it."""
    # between pages, the reader was sent rows of each bucket of the sync rules that it may see, up to the cursor
    sent = {} if cursor.until is None else dict.fromkeys(access.keys, (SentPeriod(until, cursor.after, cursor.after),))
    return Position(
        read_up_to=cursor.after,
        base=cursor.base,
        newest_at_start=until,
        old_keys=access.keys,
        new_keys=access.keys,
        sent=sent,
        sent_up_to=0 if cursor.until is None else cursor.after,
    )
