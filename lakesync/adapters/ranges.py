"""Divisions of a large move into ranges of hlc, so that several tasks carry it out at the same time.

A division is kept until every range is done: a move that is killed goes on in the same ranges, and the pages that it
repeats are the ones that it had written.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lakesync.adapters.migrate import Scope
from lakesync.adapters.several import split_points
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    from lakesync.adapters.base import DatabaseAdapter
    from lakesync.adapters.progress import Kept


class Range(NamedTuple):
    """A range of hlc."""

    since: int
    """Deltas above this hlc."""
    until: int | None
    """Deltas up to this hlc; None: all of them."""


class Division(msgspec.Struct, frozen=True):
    """A move in ranges."""

    id: str = ""
    """Progress of another division's ranges says nothing about this one's; empty: the move is not divided."""
    scope: Scope = Scope()
    points: tuple[int, ...] = ()
    """The last hlc of each range but the last."""

    def ranges(self) -> list[Range]:
        """Return its ranges, in order."""
        starts, ends = (self.scope.since, *self.points), (*self.points, self.scope.until)
        return list(map(Range, starts, ends))


def division_of(
    source: DatabaseAdapter,
    scope: Scope,
    kept: Kept[Division] | None,
    writers: int,
    size: int,
    *,
    any_scope: bool = False,
) -> Division:
    """Divide a move, or return the division that a run before this one began.

    Args:
        source: where from.
        scope: what moves.
        kept: keeps the division until `end_division`; None: the move is not divided.
        writers: how many tasks at most the target takes at the same time.
        size: deltas a range, about.
        any_scope: return a division that has begun even if it has another scope.

    Raises:
        AdapterError: an adapter cannot be reached.
        IntegrityError: another run divides the same move.
    """
    begun = kept.read() if kept is not None else None
    if begun is not None and begun.id and (any_scope or begun.scope == scope):
        return begun
    if kept is None or writers == 1:
        return Division(scope=scope)
    points = split_points(source, scope.query(size), size)
    if len(points) >= writers:
        points = [points[number * len(points) // writers] for number in range(1, writers)]
    if not points:
        return Division(scope=scope)
    division = Division(secrets.token_hex(8), scope, tuple(points))
    kept.write(division)
    crash_point("ranges.begun")
    return division


def end_division(division: Division, kept: Kept[Division] | None) -> None:
    """Forget a division, all of whose ranges are done.

    Raises:
        AdapterError: the adapter that keeps it cannot be reached; a repeat is safe.
    """
    if kept is not None and division.id:
        crash_point("ranges.before_end")
        kept.write(Division())
