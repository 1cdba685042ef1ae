"""From which parts of the lake a state table is put together: whole rows of snapshots, and deltas merged onto them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakesync.analysis.catalogue import cuts_of, marks_of
from lakesync.model.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyiceberg.table import Table


class Base(NamedTuple):
    """Rows of a state table's snapshot; of one gateway, or of all."""

    snapshot: int
    gateway: str | None


class Parts(NamedTuple):
    """What makes a state table: rows of snapshots, and the deltas that are merged onto them."""

    bases: tuple[Base, ...]
    above: Mapping[str, int] | None
    """Gateway → the arrival above which its deltas are merged; all deltas of gateways that are not listed. None: no
    deltas are merged."""
    upto: int | None
    """The last arrival of a delta; None: no bound."""


def newest(state: Table | None) -> Parts:
    """Everything that was acknowledged: the current snapshot, and the deltas above the marks of its gateways."""
    current = state.current_snapshot() if state is not None else None
    if state is None or current is None:
        return Parts((), {}, None)
    return Parts((Base(current.snapshot_id, None),), marks_of(state), None)


def as_of_arrival(state: Table | None, arrival: int) -> Parts:
    """What had arrived by then: for each gateway its last cut before, and the deltas since."""
    bases: list[Base] = []
    above: dict[str, int] = {}
    for gateway, cuts in (cuts_of(state) if state is not None else {}).items():
        reached = [cut for cut in cuts if cut <= arrival]
        if reached:
            above[gateway] = max(reached)
            bases.append(Base(cuts[above[gateway]], gateway))
    return Parts(tuple(bases), above, arrival)


def at_snapshot(snapshot: int | None) -> Parts:
    """A snapshot as it is."""
    return Parts((Base(snapshot, None),) if snapshot is not None else (), None, None)


def moment_of(snapshot: int, tables: Iterable[Table]) -> int:
    """When a snapshot of one of the tables was committed, in milliseconds.

    Raises:
        NotFoundError: none of them has it, or no longer.
    """
    seen = []
    for table in tables:
        found = table.snapshot_by_id(snapshot)
        if found is not None:
            return found.timestamp_ms
        seen += [f"{each.snapshot_id} of {table.name()[-1]}" for each in table.snapshots()[-2:]]
    known = f"; there are {', '.join(seen)} and older ones" if seen else ""
    raise NotFoundError(
        f"no table of the query has snapshot {snapshot}: it may have expired, a time in --as-of never does{known}"
    )
