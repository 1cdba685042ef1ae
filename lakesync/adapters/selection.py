"""What a query means, for adapters whose backend cannot be asked: deltas chosen, merged and summed in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lakesync.adapters.base import DeltaQuery, Held, StoredDelta, position_of
from lakesync.delta import id_number
from lakesync.lww import RowState
from lakesync.types import RowDelta


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


def held(deltas: Iterable[StoredDelta]) -> Held:
    """How many deltas, and the sum of their ids."""
    count, total = 0, 0
    for stored in deltas:
        count += 1
        total += id_number(stored.delta.delta_id)
    return Held(count, total % 2**64)
