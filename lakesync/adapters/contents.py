"""What a destination's table of rows shows of one row: a function of the set of the row's deltas alone."""

from __future__ import annotations

import msgspec

from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, RowDelta

RowId = tuple[str, str]
"""`(gateway, row id)`: the identity of a row at a destination."""


class RowContent(msgspec.Struct, frozen=True, gc=False):
    """The merge of a row's deltas, and what a table of rows needs besides."""

    state: RowState
    arrival: int = -1
    """The greatest arrival among its deltas."""
    undeleted: RowState | None = None
    """The merge without its DELETEs, for a row that has some: the values that a soft-deleted row keeps."""
    is_hidden: bool = False
    """A flow's filter does not show the row."""

    @property
    def kept(self) -> RowState:
        """The state whose values a soft-deleted row keeps."""
        return self.state if self.undeleted is None else self.undeleted

    @property
    def is_deleted(self) -> bool:
        """Whether a table with soft delete has the row as a deleted one: it was written once, or a filter hides it."""
        return self.is_hidden or (not self.state.visible and self.kept.visible)

    def united(self, other: RowContent) -> RowContent:
        """The content that the deltas of both make."""
        is_split = self.undeleted is not None or other.undeleted is not None
        return RowContent(
            united(self.state, other.state),
            max(self.arrival, other.arrival),
            united(self.kept, other.kept) if is_split else None,
            self.is_hidden or other.is_hidden,
        )


NOTHING = RowContent(RowState())
"""The content of a row without deltas."""


def united(first: RowState, second: RowState) -> RowState:
    """The merge of two states of one row."""
    whole = RowState()
    for state in (first, second):
        for op, stamp in (("DELETE", state.tombstone), ("INSERT", state.inserted)):
            if stamp is not None:
                whole.merge(RowDelta(op, "", "", stamp[1], (), stamp[0], ""))  # type: ignore[arg-type]
        for part in state.live:
            cells = tuple(ColumnValue(column, value) for column, value in part.columns.items())
            whole.merge(RowDelta("UPDATE", "", "", part.client_id, cells, part.hlc, part.delta_id))
    return whole
