"""Converts a stored row to deltas for a client.

`feed.pull` and `engine.source_pages` send these deltas; checkpoints use `insert`. Columns with the same stamp, the pair
(hlc, client id) of their write, are one delta. It has its original id if no column of it was overwritten.
"""

from __future__ import annotations

from collections.abc import Callable

from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, Stamp
from lakesync.staging.records import StoredRow
from lakesync.wire.encoded import NO_STAMP, Group, delta_of, row_deltas, stamp_groups


def insert(row: StoredRow) -> list[RowDelta]:
    """Return the whole row: an INSERT with the oldest stamp, then UPDATEs in order of their stamps."""
    return row_deltas(row.table, row.row_id, row.state)


def update(row: StoredRow, wanted: Callable[[str, Stamp], bool]) -> list[RowDelta]:
    """Return the wanted columns as UPDATEs, one per stamp.

    Args:
        row: the stored row.
        wanted: returns whether to include a column, given its name and stamp.
    """
    deltas = []
    for group in stamp_groups(row.state.live):
        columns = {column: value for column, value in group.columns.items() if wanted(column, group.stamp)}
        if columns:
            whole = group.original if len(columns) == len(group.columns) else None
            deltas.append(delta_of("UPDATE", row.table, row.row_id, Group(group.stamp, columns, whole)))
    return deltas


def delete(row: StoredRow) -> RowDelta:
    """Return a DELETE with the tombstone's stamp or, if the row is visible to others, with the stamp of its INSERT.

    A client that resolves conflicts by stamp then accepts both DELETE and INSERT, or neither.
    """
    return delta_of("DELETE", row.table, row.row_id, Group(_delete_stamp(row.state), {}, None))


def _delete_stamp(state: RowState) -> Stamp:
    """Return the stamp that a DELETE of the row has."""
    if state.live:
        return state.live[0].stamp
    if state.inserted is not None:
        return state.inserted
    return state.tombstone or NO_STAMP
