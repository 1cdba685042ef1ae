"""Converts a stored row to *deltas* for a client: INSERTs, UPDATEs or DELETEs of some of its columns.

`feed.missing_deltas` and `engine.source_reading` call it for each row of a page. A stored row has, for each column, the
value and the *stamp* of the write that it came from: (hlc, client id), the client's timestamp and id. Columns with the
same stamp become one delta. If no column of the original delta was overwritten since, the new delta has its delta id. A
*tombstone* is the greatest stamp of the row's DELETEs.
"""

from __future__ import annotations

from collections.abc import Callable

from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, Stamp
from lakesync.staging.records import StoredRow
from lakesync.wire.encoded import NO_STAMP, Group, delta_of, row_deltas, stamp_groups


def insert(row: StoredRow) -> list[RowDelta]:
    """Return the whole row: an INSERT of the columns with the oldest stamp, then UPDATEs in order of their stamps."""
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
            # `original`: the id of the delta that wrote exactly these columns; a part of them needs another id
            original = group.original if len(columns) == len(group.columns) else None
            deltas.append(delta_of("UPDATE", row.table, row.row_id, Group(group.stamp, columns, original)))
    return deltas


def delete(row: StoredRow) -> RowDelta:
    """Return a DELETE of the row for a client that may have it.

    A row that still exists has no DELETE of its own: it was hidden from the client, or an INSERT of it follows. Such a
    DELETE has the stamp that `insert` gives the row's INSERT. So a client that resolves conflicts by stamp accepts both
    or neither. A deleted row's DELETE has the stamp of its tombstone, the greatest one of its DELETEs.
    """
    return delta_of("DELETE", row.table, row.row_id, Group(_delete_stamp(row.state), {}, None))


def _delete_stamp(state: RowState) -> Stamp:
    """Return the stamp of `delete`: the oldest of the row's columns, else that of its INSERT, else its tombstone."""
    if state.live:  # the columns by the delta that wrote them, the oldest stamp first
        return state.live[0].stamp
    if state.inserted is not None:
        return state.inserted
    return state.tombstone or NO_STAMP
