"""Checks merges of state tables while they run, by merging a sampled row again with the gateway's own code.

A state table has the current rows of one synced table, merged from its deltas (changes). A value in it is a *cell*,
with the stamp (the client's timestamp and id) of the delta that wrote it.

The lake merges with a kernel of its own (`lakehouse.tables.kernel`); the gateway's code is `lakesync.model.merge`. The
Spark tasks of a merge (`lakehouse.tables.merge_job`) merge one slice of a table's rows after another, and call this
module after each. Audits, the checks of checkpoints, erasures and tests call `stored_row`, to convert rows of state
tables to the gateway's type.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from lakesync.model.merge import LiveDelta, RowState, StoredState
from lakesync.staging.records import StoredRow
from lakesync.wire.history import delta_of_row

ROW_COLUMNS = ("_row", "_cells", "_tombstone", "_inserted", "_gone", "_arrival")
"""The columns of a state table that `stored_row` needs."""


def stored_row(table: str, row: dict[str, Any]) -> StoredRow:
    """Convert a row of a state table. Its cells are grouped into the deltas that wrote them.

    Args:
        table: the table's name.
        row: the row as a dictionary, with the columns `ROW_COLUMNS`.
    """
    live: dict[tuple[int, str, str, int], LiveDelta] = {}
    for column, cell in row["_cells"]:
        identity = (cell["hlc"], cell["client_id"], cell["delta_id"], cell["width"])
        delta = live.get(identity)
        if delta is None:
            delta = live[identity] = LiveDelta(*identity[:3], {}, cell["width"])
        delta.columns[column] = Raw(cell["value"].encode())
    ordered = [live[identity] for identity in sorted(live)]
    state = RowState.of(ordered, _stamp(row["_tombstone"]), _stamp(row["_inserted"]))
    return StoredRow((table, row["_row"]), row["_arrival"], state)


MAX_SAMPLED_DELTAS = 1_000
"""Deltas of a sampled row, at most. A row with more is not checked: the gateway's code merges them one by one, slowly.
"""

_TABLE = "t"
"""A table name for deltas without one; its value does not matter to a merge."""
_LARGE_PRIME = 1_000_003
"""Multiplied with a number of rows, it chooses a row as if by chance, so that it is not always the first."""


def count_duplicates(stored: pa.Table) -> int:
    """Return the number of rows to delete so that no two have the same key, which is gateway and row id."""
    if not stored.num_rows:
        return 0
    gateways, rows = (stored[name].combine_chunks().dictionary_encode() for name in ("_gateway", "_row"))
    keys = np.asarray(gateways.indices).astype(np.int64) * len(rows.dictionary) + np.asarray(rows.indices)
    return len(keys) - len(np.unique(keys))


def sampled_row_difference(deltas: pa.Table, stored: pa.Table, merged: pa.Table) -> str | None:
    """Merge one row of a slice again with the gateway's code, and compare the result with the kernel's.

    Args:
        deltas: the slice's deltas, in the kernel's columns `DELTAS`.
        stored: the slice's stored rows, in the columns `STORED`.
        merged: the kernel's merge of both.

    Returns:
        Both results as JSON if they differ; None if they are equal, or no row was chosen.
    """
    if not deltas.num_rows:
        return None
    chosen = _LARGE_PRIME * merged.num_rows % deltas.num_rows
    gateway, row = (deltas[name][chosen].as_py() for name in ("gateway", "row_id"))
    deltas_of_row = deltas.filter(_row_mask(deltas, "gateway", gateway, "row_id", row))
    if deltas_of_row.num_rows > MAX_SAMPLED_DELTAS:
        return None
    (kernel_row,) = merged.filter(_row_mask(merged, "_gateway", gateway, "_row", row)).to_pylist()
    state = RowState()
    for stored_copy in stored.filter(_row_mask(stored, "_gateway", gateway, "_row", row)).to_pylist():
        state = stored_row(_TABLE, stored_copy).state
    for delta in deltas_of_row.to_pylist():
        state.merge(delta_of_row(delta))
    merged_state = stored_row(_TABLE, kernel_row).state
    if merged_state == state:
        return None
    both = {"gateway": gateway, "row": row, "merged": StoredState.of(merged_state), "expected": StoredState.of(state)}
    return msgspec.json.encode(both).decode()


def _stamp(stamp: dict[str, Any] | None) -> tuple[int, str] | None:
    """Convert a stamp of the lake, a struct, to the gateway's type, a pair."""
    return None if stamp is None else (stamp["hlc"], stamp["client_id"])


def _row_mask(rows: pa.Table, gateway_column: str, gateway: str, row_column: str, row: str) -> pa.ChunkedArray:
    """Return a mask that selects the rows with a gateway and a row id."""
    return pc.and_(pc.equal(rows[gateway_column], gateway), pc.equal(rows[row_column], row))
