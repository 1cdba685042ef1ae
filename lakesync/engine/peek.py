"""What a client may see, for somebody else who looks: nothing is read from or kept in the client's record.

A cursor says all that the next page needs. It belongs to the claims that it was handed out for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from lakesync.engine.access import RulesCache
from lakesync.feed import pull_page
from lakesync.feed.positions import NOTHING, Access, Position, Reach
from lakesync.model.errors import ResyncRequiredError, ValidationError
from lakesync.model.types import Claims, RowDelta
from lakesync.staging.store import View

_NOBODY = ""
"""Stands for a client that wrote nothing, so that all that the claims show is told; it can be no client's id."""
NOW = "now"
"""In place of a cursor: only what changes from here on is wanted."""
_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,18})(?:-([0-9]{1,18})-([0-9]{1,18}))?")


class PeekPage(NamedTuple):
    """What the claims show after a cursor."""

    deltas: Sequence[RowDelta]
    cursor: str
    """For the next page."""
    has_more: bool


class _Place(NamedTuple):
    """What a cursor says."""

    rules_version: int
    """Of the rules under which it was handed out."""
    after: int
    """All up to here was shown."""
    base: int = NOTHING
    """Where the pages began; `NOTHING`: with all that is there."""
    until: int | None = None
    """The newest arrival when they began; None: no more was left."""

    def text(self) -> str:
        rest = "" if self.until is None else f"-{self.base - NOTHING}-{self.until}"
        return f"{self.rules_version}-{self.after}{rest}"

    def is_possible(self, access: Access, newest: int) -> bool:
        """Whether it can have been handed out under the rules in force."""
        known = max(self.after, self.until or 0) <= newest and self.base <= self.after
        return self.rules_version == access.rules_version and known


def peek(view: View, claims: Claims, since: str | None, limit: int, rules: RulesCache) -> PeekPage:
    """A page of the rows that the claims show, or of their changes.

    Args:
        view: the gateway.
        claims: a client's.
        since: the cursor of the page before; None: all that is there; `now`: nothing of that.
        limit: as for a pull.
        rules: the gateway's.

    Raises:
        ValidationError: it is no such cursor.
        ResyncRequiredError: the rules changed since, or the store was replaced.
    """
    access = rules.access(view, claims)
    if since == NOW:
        return PeekPage((), _Place(access.rules_version, view.arrival, view.arrival).text(), has_more=False)
    place = _place(since) if since is not None else _Place(access.rules_version, 0)
    if not place.is_possible(access, view.arrival):
        raise ResyncRequiredError(f"the rules changed since the cursor {since!r} was handed out: look without one")
    until = view.arrival if place.until is None else place.until
    page = pull_page(view, _NOBODY, _position(place, access, until), access, limit)
    if page.has_more:
        after = place._replace(after=page.after, until=until)
    else:
        after = _Place(access.rules_version, view.arrival, view.arrival)
    return PeekPage(page.deltas, after.text(), page.has_more)


def no_cursor(since: str) -> ValidationError:
    """The error of a text that this route has not handed out."""
    return ValidationError(f"since is {since[:60]!r}, which is no cursor of this route: leave it out at first")


def _place(since: str) -> _Place:
    found = _CURSOR.fullmatch(since)
    if found is None:
        raise no_cursor(since)
    rules_version, after, base, until = found.groups()
    if base is None:
        return _Place(int(rules_version), int(after), int(after))
    return _Place(int(rules_version), int(after), int(base) + NOTHING, int(until))


def _position(place: _Place, access: Access, until: int) -> Position:
    """Where somebody is who was shown all up to the place, and nothing beyond it."""
    shown = {} if place.until is None else dict.fromkeys(access.keys, (Reach(until, place.after),))
    return Position(
        place.after,
        place.base,
        until,
        resync=False,
        origin=0,
        then=access.keys,
        now=access.keys,
        reach=shown,
        told=0 if place.until is None else place.after,
    )
