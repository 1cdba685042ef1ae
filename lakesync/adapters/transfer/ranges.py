"""Divides a large migration or move to a cold tier into ranges of hlcs, so that several tasks can process them.

A division is stored until every range is done. A killed move resumes in the same ranges. So a page that it repeats is
equal to the page that was written before, and is recognised by its batch id. The pipeline calls it.
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
    """Ranges store their progress with this id; that of another division is ignored. Empty if not divided."""
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
    store: ProgressStore[Division] | None,
    writers: int,
    size: int,
    *,
    any_scope: bool = False,
) -> Division:
    """Divide a move, or return the division that an earlier run began.

    Args:
        source: the adapter to read.
        scope: the deltas to move.
        store: stores the division until `end_division`; None if the move must not be divided.
        writers: the target's `max_writers`; 1 if the move must not be divided.
        size: approximate deltas per range.
        any_scope: return a stored division even if its scope differs.

    Raises:
        AdapterError: an adapter cannot be reached.
        IntegrityError: another run divides the same move.
    """
    stored = store.read() if store is not None else None
    if stored is not None and stored.id and (any_scope or stored.scope == scope):
        return stored
    if store is None or writers == 1:
        return Division(scope=scope)
    points = split_points(source, scope.query(size), size)
    if len(points) >= writers:
        points = [points[number * len(points) // writers] for number in range(1, writers)]
    if not points:
        return Division(scope=scope)
    division = Division(secrets.token_hex(8), scope, tuple(points))
    store.write(division)
    crash_point("ranges.begun")
    return division


def end_division(division: Division, store: ProgressStore[Division] | None) -> None:
    """Delete a division whose ranges are all done.

    Args:
        division: the division.
        store: where it is stored; None if the move is not divided.

    Raises:
        AdapterError: the adapter that stores it cannot be reached; retry.
    """
    if store is not None and division.id:
        crash_point("ranges.before_end")
        store.write(Division())
