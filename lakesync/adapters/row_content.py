"""The content of one row in a destination table: the merge of the row's deltas, in any order.

A destination table has the current rows of a synced table at a backend. With soft delete, a deleted row stays in it
with its last values and a mark. Adapters with destination tables, flows and tiers use this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lakesync.adapters.deltas import StoredDelta
from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, RowDelta

RowId = tuple[str, str]
"""`(gateway, row id)`: the identity of a row at a destination."""


class RowContent(msgspec.Struct, frozen=True, gc=False):
    """The merge of a row's deltas, with the details that a destination table needs."""

    state: RowState
    arrival: int = -1
    """The greatest arrival of its deltas; -1 if it has no deltas."""
    without_deletes: RowState | None = None
    """The merge without DELETEs, for a row that has any: the values that a soft-deleted row keeps."""
    is_hidden: bool = False
    """Whether a flow's filter excludes the row."""

    @property
    def retained(self) -> RowState:
        """The state whose values a soft-deleted row keeps."""
        return self.state if self.without_deletes is None else self.without_deletes

    @property
    def is_deleted(self) -> bool:
        """Whether a table with soft delete marks the row as deleted: it existed before, or a filter hides it."""
        return self.is_hidden or (not self.state.visible and self.retained.visible)

    def merged_with(self, other: RowContent) -> RowContent:
        """Return the content of the union of both sets of deltas."""
        has_deletes = self.without_deletes is not None or other.without_deletes is not None
        return RowContent(
            merge_states(self.state, other.state),
            max(self.arrival, other.arrival),
            merge_states(self.retained, other.retained) if has_deletes else None,
            self.is_hidden or other.is_hidden,
        )


NO_CONTENT = RowContent(RowState())
"""The content of a row without deltas."""


def merge_states(first: RowState, second: RowState) -> RowState:
    """Merge two states of one row, by merging deltas that would give each of them.

    `RowState` merges only deltas. The result equals the merge of all deltas of both states.

    Args:
        first: a state.
        second: another state of the same row.
    """
    merged = RowState()
    for state in (first, second):
        for op, stamp in (("DELETE", state.tombstone), ("INSERT", state.inserted)):
            if stamp is not None:
                merged.merge(RowDelta(op, "", "", stamp[1], (), stamp[0], ""))  # type: ignore[arg-type]
        for write in state.live:
            cells = tuple(ColumnValue(column, value) for column, value in write.columns.items())
            merged.merge(RowDelta("UPDATE", "", "", write.client_id, cells, write.hlc, write.delta_id))
    return merged


def states_of(deltas: Iterable[RowDelta]) -> dict[str, RowState]:
    """Merge deltas of one table into row states, by row id."""
    states: dict[str, RowState] = {}
    for delta in deltas:
        states.setdefault(delta.row_id, RowState()).merge(delta)
    return states


def contents_of(deltas: Iterable[StoredDelta]) -> dict[RowId, RowContent]:
    """Merge deltas of one table into row contents, by gateway and row id."""
    by_row: dict[RowId, list[StoredDelta]] = {}
    for stored in deltas:
        by_row.setdefault((stored.gateway, stored.delta.row_id), []).append(stored)
    return {row: _content(row_deltas) for row, row_deltas in by_row.items()}


def _content(deltas: Sequence[StoredDelta]) -> RowContent:
    """Merge the deltas of one row."""
    state, without_deletes = RowState(), RowState()
    has_deletes = any(stored.delta.op == "DELETE" for stored in deltas)
    for stored in deltas:
        state.merge(stored.delta)
        if has_deletes and stored.delta.op != "DELETE":
            without_deletes.merge(stored.delta)
    return RowContent(state, max(stored.arrival for stored in deltas), without_deletes if has_deletes else None)
