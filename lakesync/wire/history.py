"""Converts deltas to columns of the lake's history, in Arrow. Flush tasks use it if `fast_decode` rejects a body."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lakesync.wire.canonical import canonical_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Raw

    from lakesync.model.types import RowDelta

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
"""Names and types, in the order of `delta_columns`."""


def delta_columns(deltas: Sequence[RowDelta]) -> list[pa.Array]:
    """Return the columns of `DELTA_FIELDS`; values are canonical texts, so that equal values have equal texts.

    Raises:
        ValidationError: a value has no canonical form.
    """
    widths = np.fromiter((len(delta.columns) for delta in deltas), np.int32, len(deltas))
    told = [() if delta.op == "DELETE" else delta.columns for delta in deltas]  # those of a DELETE do not count
    cells = list(chain.from_iterable(told))
    offsets = np.zeros(len(deltas) + 1, np.int32)
    np.cumsum([len(each) for each in told], out=offsets[1:])
    return [
        pa.array([delta.table for delta in deltas], pa.string()),
        pa.array([delta.row_id for delta in deltas], pa.string()),
        pa.array([delta.op for delta in deltas], pa.string()),
        pa.array([delta.client_id for delta in deltas], pa.string()),
        pa.array([delta.hlc for delta in deltas], pa.int64()),
        pa.array([delta.delta_id for delta in deltas], pa.string()),
        pa.array(widths),
        pa.MapArray.from_arrays(
            pa.array(offsets), pa.array([cell.column for cell in cells], pa.string()), _texts([c.value for c in cells])
        ),
    ]


def _texts(values: Sequence[Raw]) -> pa.Array:
    """Return the canonical texts of JSON values."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    joined = pa.py_buffer(b"".join(values))
    return canonical_texts(pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), joined]))
