"""Converts deltas to columns of the lake's history, in Arrow, with values as canonical (JCS) texts.

Flush tasks use `delta_columns` if `fast_decode` rejects a body; both use `canonical_texts`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakesync.model.delta import jcs_raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from msgspec import Raw

    from lakesync.model.types import RowDelta


_CANONICAL = r'^(?:0|-?[1-9][0-9]{0,14}|true|false|null|"[^"\\\x00-\x1f]*")$'
"""Matches values that are canonical already, as most pushed values are."""


def canonical_texts(texts: pa.Array, doubtful: npt.NDArray[np.int64] | None = None) -> pa.Array:
    """Return the canonical texts of JSON values.

    Args:
        texts: JSON values.
        doubtful: positions of the values that may not be canonical; None for all.

    Raises:
        ValidationError: a value has no canonical form.
    """
    checked = texts if doubtful is None else texts.take(pa.array(doubtful))
    other = pc.invert(pc.match_substring_regex(checked, _CANONICAL))
    canonical = [jcs_raw(text) for text in checked.filter(other).cast(pa.binary()).to_pylist()]
    if not canonical:
        return texts
    found = pc.replace_with_mask(checked, other, pa.array(canonical, pa.string()))
    if doubtful is None:
        return found
    indexes = np.arange(len(texts))
    indexes[doubtful] = len(texts) + np.arange(len(doubtful))
    return pa.concat_arrays([texts, found]).take(pa.array(indexes))


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
"""Names and types of the columns that `delta_columns` returns. `width` is the number of columns that were pushed."""


def delta_columns(deltas: Sequence[RowDelta]) -> list[pa.Array]:
    """Return the columns of `DELTA_FIELDS`; values are canonical texts, so that equal values have equal texts.

    Raises:
        ValidationError: a value has no canonical form.
    """
    widths = np.fromiter((len(delta.columns) for delta in deltas), np.int32, len(deltas))
    cells_of_deltas = [
        () if delta.op == "DELETE" else delta.columns for delta in deltas
    ]  # columns of a DELETE are ignored
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
            pa.array(offsets), pa.array([cell.column for cell in cells], pa.string()), _texts([c.value for c in cells])
        ),
    ]


def _texts(values: Sequence[Raw]) -> pa.Array:
    """Return the canonical texts of JSON values."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    joined = pa.py_buffer(b"".join(values))
    return canonical_texts(pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), joined]))
