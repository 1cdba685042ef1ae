"""From which parts of the lake a state table is put together: whole rows of snapshots, and deltas merged onto them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg import expressions as ice

from lakesync.analysis.catalogue import cuts_of, marks_of
from lakesync.analysis.scans import both, either, holds
from lakesync.exceptions import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table


class Base(NamedTuple):
    """Rows of a state table's snapshot; of one gateway, or of all."""

    snapshot: int
    gateway: str | None


class Parts(NamedTuple):
    """What makes a state table."""

    bases: tuple[Base, ...]
    deltas: BooleanExpression | None
    """Which of the table's deltas in the history are merged onto them; None: none."""
    upto: int | None
    """The last arrival; None: no bound."""
    unflushed: bool
    """Whether what is not flushed yet counts."""


def newest(state: Table | None) -> Parts:
    """Everything that was acknowledged: the current snapshot, and what is above the marks of its gateways."""
    current = state.current_snapshot() if state is not None else None
    if state is None or current is None:
        return Parts((), ice.AlwaysTrue(), None, unflushed=True)
    marks = marks_of(state)
    above = [both(holds("gateway", "=", gateway), holds("arrival", ">", mark)) for gateway, mark in marks.items()]
    others = holds("gateway", "not in", set(marks)) if marks else ice.AlwaysTrue()
    return Parts((Base(current.snapshot_id, None),), either([*above, others]), None, unflushed=True)


def as_of_arrival(state: Table | None, arrival: int) -> Parts:
    """What had arrived by then: for each gateway its last cut before, and the deltas since."""
    bases: list[Base] = []
    since: dict[str, int] = {}
    for gateway, cuts in (cuts_of(state) if state is not None else {}).items():
        reached = [cut for cut in cuts if cut <= arrival]
        if reached:
            since[gateway] = max(reached)
            bases.append(Base(cuts[since[gateway]], gateway))
    above = [both(holds("gateway", "=", gateway), holds("arrival", ">", cut)) for gateway, cut in since.items()]
    others = holds("gateway", "not in", set(since)) if since else ice.AlwaysTrue()
    deltas = both(either([*above, others]), holds("arrival", "<=", arrival))
    return Parts(tuple(bases), deltas, arrival, unflushed=True)


def at_snapshot(snapshot: int | None) -> Parts:
    """A snapshot as it is."""
    return Parts((Base(snapshot, None),) if snapshot is not None else (), None, None, unflushed=False)


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
