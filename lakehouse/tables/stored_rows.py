"""Converts rows of state tables to the rows of the staging store, so that the gateway's code can merge or send them.

Audits, the checks of merges and of checkpoints, and tests call it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from lakesync.model.merge import LiveDelta, RowState
from lakesync.staging.records import StoredRow

FRAME_COLUMNS = ("_row", "_cells", "_tombstone", "_inserted", "_gone", "_arrival")
"""The columns of a state table that `stored_row` needs."""


def stored_row(table: str, row: dict[str, Any]) -> StoredRow:
    """Convert a row of a state table. Its cells are grouped into the deltas that wrote them.

    Args:
        table: the table's name.
        row: the row as a dictionary, with the columns `FRAME_COLUMNS`.
    """
    live: dict[tuple[int, str, str, int], LiveDelta] = {}
    for column, cell in row["_cells"]:
        identity = (cell["hlc"], cell["client_id"], cell["delta_id"], cell["width"])
        owner = live.get(identity)
        if owner is None:
            owner = live[identity] = LiveDelta(*identity[:3], {}, cell["width"])
        owner.columns[column] = Raw(cell["value"].encode())
    ordered = [live[identity] for identity in sorted(live)]
    state = RowState.of(ordered, _stamp(row["_tombstone"]), _stamp(row["_inserted"]))
    return StoredRow((table, row["_row"]), row["_arrival"], state)


def _stamp(stamp: dict[str, Any] | None) -> tuple[int, str] | None:
    return None if stamp is None else (stamp["hlc"], stamp["client_id"])
