"""Divides a large move into ranges of hlcs, so that several tasks can move them in parallel.

A division is stored until every range is done. A killed move resumes in the same ranges, so pages that it repeats are
pages that it had written.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lakesync.adapters.arrow_access import split_points
from lakesync.adapters.transfer.migration import MigrationScope
from lakesync.model.crash_points import crash_point

if TYPE_CHECKING:
    from lakesync.adapters.base import DatabaseAdapter
    from lakesync.adapters.transfer.progress import ProgressStore


class HlcRange(NamedTuple):
    """A range of hlcs."""

    since: int
    """Exclusive lower bound."""
    until: int | None
    """Inclusive upper bound; None for no bound."""


class Division(msgspec.Struct, frozen=True):
    """A move divided into ranges."""

    id: str = ""
    """Progress of ranges of another division is ignored. Empty if the move is not divided."""
    scope: MigrationScope = MigrationScope()
    points: tuple[int, ...] = ()
    """The last hlc of each range except the last."""

    def ranges(self) -> list[HlcRange]:
        """Return its ranges, in order."""
        starts, ends = (self.scope.since, *self.points), (*self.points, self.scope.until)
        return list(map(HlcRange, starts, ends))


def begin_division(
    source: DatabaseAdapter,
    scope: MigrationScope,
    kept: ProgressStore[Division] | None,
    writers: int,
    size: int,
    *,
    any_scope: bool = False,
) -> Division:
    """Divide a move, or return the division that an earlier run began.

    Args:
        source: the adapter to read.
        scope: the deltas to move.
        kept: stores the division until `end_division`; None if the move must not be divided.
        writers: how many tasks the target accepts in parallel.
        size: approximate deltas per range.
        any_scope: return a stored division even if its scope differs.

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


def end_division(division: Division, kept: ProgressStore[Division] | None) -> None:
    """Delete a division whose ranges are all done.

    Args:
        division: the division.
        kept: where it is stored; None if the move is not divided.

    Raises:
        AdapterError: the adapter that stores it cannot be reached; retry.
    """
    if kept is not None and division.id:
        crash_point("ranges.before_end")
        kept.write(Division())
