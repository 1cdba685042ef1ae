"""One row: what the gateway is known to have, what a page or an accepted edit makes of it, what the app sees.

All merging is `lakesync.model.merge`. The app's row is the merge of the known row and its edits; since that merge does
not depend on order, an edit that is accepted moves from one to the other and the app's row stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from lakesync.client.core.records import Edit
from lakesync.model.merge import LiveDelta, RowState
from lakesync.model.types import RowDelta


def take(state: RowState, delta: RowDelta) -> bool:
    """Apply a delta of a page, in place; whether anything changed.

    The gateway's DELETE empties the row whatever its stamps, since it also says that the row moved out of sight; the
    stamp then only measures edits. An INSERT says that the row is there, and that stamp means nothing any more.
    """
    if delta.op == "DELETE":
        changed = state.visible or state.tombstone != delta.stamp
        state.live, state.inserted, state.tombstone = [], None, delta.stamp
        return changed
    buried = delta.op == "INSERT" and state.tombstone is not None
    if buried:
        state.tombstone = None
    return fold(state, delta) or buried


def fold(state: RowState, delta: RowDelta) -> bool:
    """Merge an accepted edit, in place; whether anything changed."""
    op, table, row_id, client_id = delta.op, delta.table, delta.row_id, delta.client_id
    return state.merge(RowDelta(op, table, row_id, client_id, delta.columns, delta.hlc, delta_id="")).changed


def seen(state: RowState | None, edits: Sequence[Edit]) -> dict[str, Raw] | None:
    """The row as the app sees it; None where it is not there."""
    if edits:
        state = _copy(state) if state is not None else RowState()
        for edit in edits:
            fold(state, edit.delta)
    return state.values() if state is not None and state.visible else None


def _copy(state: RowState) -> RowState:
    live = [LiveDelta(part.hlc, part.client_id, part.delta_id, dict(part.columns), part.width) for part in state.live]
    return RowState(live, state.tombstone, state.inserted)
