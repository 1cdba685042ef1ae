"""What a query means, for adapters whose backend cannot be asked: deltas chosen, merged and summed in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lakesync.adapters.base import DeltaQuery, Held, StoredDelta, position_of
from lakesync.adapters.contents import RowContent, RowId
from lakesync.model.delta import id_number
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta


def selected(deltas: Iterable[StoredDelta], query: DeltaQuery) -> Iterator[StoredDelta]:
    """Those of the deltas that a query asks for, whatever its limit."""
    tables, rows = frozenset(query.tables), frozenset(query.rows)
    for stored in deltas:
        delta = stored.delta
        value = stored.arrival if query.order == "arrival" else delta.hlc
        if (
            value > query.since
            and (query.until is None or value <= query.until)
            and (query.gateway is None or stored.gateway == query.gateway)
            and (not tables or delta.table in tables)
            and (not rows or delta.row_id in rows)
            and (query.after is None or position_of(stored, query.order) > query.after)
        ):
            yield stored


def merged(deltas: Iterable[RowDelta]) -> dict[str, RowState]:
    """The states of one table's rows, by row id."""
    states: dict[str, RowState] = {}
    for delta in deltas:
        states.setdefault(delta.row_id, RowState()).merge(delta)
    return states


def contents_of(deltas: Iterable[StoredDelta]) -> dict[RowId, RowContent]:
    """What one table's rows contain, by gateway and row id."""
    by_row: dict[RowId, list[StoredDelta]] = {}
    for stored in deltas:
        by_row.setdefault((stored.gateway, stored.delta.row_id), []).append(stored)
    return {row: _content(some) for row, some in by_row.items()}


def _content(deltas: Sequence[StoredDelta]) -> RowContent:
    state, undeleted = RowState(), RowState()
    is_split = any(stored.delta.op == "DELETE" for stored in deltas)
    for stored in deltas:
        state.merge(stored.delta)
        if is_split and stored.delta.op != "DELETE":
            undeleted.merge(stored.delta)
    return RowContent(state, max(stored.arrival for stored in deltas), undeleted if is_split else None)


def held(deltas: Iterable[StoredDelta]) -> Held:
    """How many deltas, and the sum of their ids."""
    count, total = 0, 0
    for stored in deltas:
        count += 1
        total += id_number(stored.delta.delta_id)
    return Held(count, total % 2**64)
