"""Converts deltas to columns of the lake's history, in Arrow, with values as canonical JSON texts (JCS), and back.

A *delta* is a change of some columns of one row; the *history* is the Iceberg table of all deltas. The Spark tasks that
write it call this module (`lakehouse.history.decoding`), and so do queries of deltas that are not in the lake yet
(`analysis.unflushed`). Readers of single deltas of the lake call `delta_of_row`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from lakesync.model.delta import CANONICAL, jcs_raw
from lakesync.model.types import ColumnValue, RowDelta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DELTA_FIELDS = (
    ("table_name", pa.string()),
    ("row_id", pa.string()),
    ("op", pa.string()),
    ("client_id", pa.string()),
    ("hlc", pa.int64()),
    ("delta_id", pa.string()),
    ("width", pa.int32()),
    ("columns", pa.map_(pa.string(), pa.string())),
)
"""Names and types of the columns that `delta_columns` returns. `width` is the number of columns that were pushed. A
delta that still owns so many columns of its row is sent to clients with its own id. `width` also breaks ties between
deltas of one stamp."""


def delta_columns(deltas: Sequence[RowDelta]) -> list[pa.Array]:
    """Return the columns of `DELTA_FIELDS`; values are canonical texts, so that equal values have equal texts.

    Raises:
        ValidationError: a value has no canonical form.
    """
    widths = np.fromiter((len(delta.columns) for delta in deltas), np.int32, len(deltas))
    # columns of a DELETE are ignored
    cells_of_deltas = [() if delta.op == "DELETE" else delta.columns for delta in deltas]
    cells = list(chain.from_iterable(cells_of_deltas))
    offsets = np.zeros(len(deltas) + 1, np.int32)
    np.cumsum([len(each) for each in cells_of_deltas], out=offsets[1:])
    return [
        pa.array([delta.table for delta in deltas], pa.string()),
        pa.array([delta.row_id for delta in deltas], pa.string()),
        pa.array([delta.op for delta in deltas], pa.string()),
        pa.array([delta.client_id for delta in deltas], pa.string()),
        pa.array([delta.hlc for delta in deltas], pa.int64()),
        pa.array([delta.delta_id for delta in deltas], pa.string()),
        pa.array(widths),
        pa.MapArray.from_arrays(
            pa.array(offsets),
            pa.array([cell.column for cell in cells], pa.string()),
            _canonical_texts([cell.value for cell in cells]),
        ),
    ]


def delta_of_row(row: Mapping[str, Any]) -> RowDelta:
    """Return the delta in a row of the history.

    Args:
        row: the row as a dictionary, with `columns` as pairs; the caller may leave out `table_name`.
    """
    cells = tuple(ColumnValue(name, Raw(text.encode())) for name, text in row["columns"] or ())
    key = row.get("table_name", ""), row["row_id"]
    return RowDelta(row["op"], *key, row["client_id"], cells, row["hlc"], row["delta_id"])


def _canonical_texts(values: Sequence[Raw]) -> pa.Array:
    """Return the canonical texts of JSON values.

    Only values that are not canonical yet are parsed, because that is slow.
    """
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    joined = pa.py_buffer(b"".join(values))
    # no copy of each value: the buffers are the null bitmap (no nulls), the offsets, and the texts
    texts = pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), joined])
    not_canonical = pc.invert(pc.match_substring_regex(texts, f"^(?:{CANONICAL})$"))
    canonical = [jcs_raw(text) for text in texts.filter(not_canonical).cast(pa.binary()).to_pylist()]
    return pc.replace_with_mask(texts, not_canonical, pa.array(canonical, pa.string())) if canonical else texts
