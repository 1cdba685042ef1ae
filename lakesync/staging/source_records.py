"""What a client's record keeps of the sources that it pulls from."""

from __future__ import annotations

import msgspec

from lakesync.model.position import Position
from lakesync.model.types import Claims
from lakesync.rules.model import SyncRules


class Sight(msgspec.Struct, frozen=True, array_like=True):
    """A time in which a client's rules and claims were the same."""

    rules: SyncRules
    claims: Claims
    """Those that the rules read."""
    first: Position | None = None
    """The newest place of the source when it began: what was replaced up to here was not shown in it."""
    last: Position | None = None
    """The client was sent nothing beyond this in it."""


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """A page that was sent and may not have arrived."""

    mark: int
    """The cursor that it handed out."""
    end: Position | None
    """Where the next page starts once this one is known to be there."""
    times: int
    """How often it was sent in a row, or one from the same place."""
    start: Position | None = None
    """Where it began."""
    more: bool = False
    """The source had more behind it."""


class SourcePosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a client is with one source."""

    source: str
    done: Position | None = None
    """It has got everything up to here; None: nothing yet."""
    offer: Offer | None = None
    round: Position | None = None
    """How far the round is of a client that has no cursor yet, or that gave no sign of having received a page; None:
    it begins behind `done`."""
    marks: tuple[tuple[int, int], ...] = ()
    """`(mark, the cursor that it stands for)`, newest first; the newest few."""
    tables: tuple[str, ...] = ()
    """Of the rows that it was sent."""
    sights: tuple[Sight, ...] = ()
    """Newest last; the newest few."""
