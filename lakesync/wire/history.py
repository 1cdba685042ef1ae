"""A delta as a row of the lake's history: the columns that it brings itself, in Arrow's types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lakesync.delta import jcs_raw

if TYPE_CHECKING:
    from lakesync.types import RowDelta

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
"""In the order of `delta_values`."""


def delta_values(delta: RowDelta) -> tuple[object, ...]:
    """The values of `DELTA_FIELDS`: each column's value as its JCS text, so that one spelling is compared and shown.

    Raises:
        ValidationError: a value has no canonical form.
    """
    columns = () if delta.op == "DELETE" else delta.columns
    return (
        delta.table,
        delta.row_id,
        delta.op,
        delta.client_id,
        delta.hlc,
        delta.delta_id,
        len(delta.columns),
        [(cell.column, jcs_raw(cell.value)) for cell in columns],
    )
