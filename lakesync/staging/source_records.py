"""The part of a client's record about sources: how far the client is with each source that it pulls from.

`engine.source_positions` creates and reads it. A source is a named adapter beside the gateway's own feed.
"""

from __future__ import annotations

import msgspec

from lakesync.model.position import Position
from lakesync.model.types import Claims
from lakesync.rules.model import SyncRules


class Sight(msgspec.Struct, frozen=True, array_like=True):
    """A period in which a client's rules and claims did not change."""

    rules: SyncRules
    claims: Claims
    """The claims that the rules read."""
    first: Position | None = None
    """The source's newest position when the period began. Row versions that were replaced up to here were not visible
    in it."""
    last: Position | None = None
    """The client was sent nothing beyond this position in the period."""


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """A page that was sent and is not confirmed."""

    mark: int
    """The cursor of the page."""
    end: Position | None
    """Where the next page begins once this one is confirmed."""
    times: int
    """How often in a row a page from the same position was sent."""
    start: Position | None = None
    """The position at which the page begins."""
    more: bool = False
    """Whether the source had more after it."""


class SourcePosition(msgspec.Struct, frozen=True, array_like=True):
    """A client's position in one source."""

    source: str
    done: Position | None = None
    """Everything up to here is confirmed; None if nothing is."""
    offer: Offer | None = None
    """The page that is not confirmed."""
    round: Position | None = None
    """Position in the current pass over the source, for a client without a cursor or one that never confirms a page.
    None: the pass begins after `done`."""
    marks: tuple[tuple[int, int], ...] = ()
    """Pairs of a page's cursor and the feed cursor that it stands for, newest first; only the newest few."""
    tables: tuple[str, ...] = ()
    """Tables of the rows that the client was sent."""
    sights: tuple[Sight, ...] = ()
    """Newest last; only the newest few."""
