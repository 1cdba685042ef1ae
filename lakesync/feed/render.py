"""A row spelled as deltas with true stamps: grouped by stamp, original ids where a group is the original delta."""

from __future__ import annotations

from collections.abc import Callable

from lakesync.lww import RowState
from lakesync.staging.records import StoredRow
from lakesync.types import RowDelta, Stamp
from lakesync.wire.spelled import NO_STAMP, Group, delta_of, groups_of, whole_row


def insert(row: StoredRow) -> list[RowDelta]:
    """The whole row: INSERT with the oldest stamp, then UPDATEs in order of stamp."""
    return whole_row(row.table, row.row_id, row.state)


def update(row: StoredRow, wanted: Callable[[str, str], bool]) -> list[RowDelta]:
    """The columns for which `wanted(column, owner's client id)` holds."""
    deltas = []
    for group in groups_of(row.state):
        columns = {column: value for column, value in group.columns.items() if wanted(column, group.stamp[1])}
        if columns:
            whole = group.original if len(columns) == len(group.columns) else None
            deltas.append(delta_of("UPDATE", row.table, row.row_id, Group(group.stamp, columns, whole)))
    return deltas


def delete(row: StoredRow) -> RowDelta:
    """A DELETE with the tombstone's stamp or, where the row lives on for others, one no newer than its data."""
    return delta_of("DELETE", row.table, row.row_id, Group(_delete_stamp(row.state), {}, None))


def _delete_stamp(state: RowState) -> Stamp:
    if not state.visible and state.tombstone is not None:
        return state.tombstone
    stamps = [(part.hlc, part.client_id) for part in state.live]
    if state.inserted is not None:
        stamps.append(state.inserted)
    return min(stamps, default=NO_STAMP)
