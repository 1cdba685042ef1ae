"""The table of deltas: its columns, and Arrow tables as rows of it.

It is unique by (hlc, client id, delta id, gateway), which is a delta's identity in the order that reading by hlc wants.
Delta ids are the clients' affair and may be longer than a key takes: a long one lies in a column of its own, and what
stands for it in the key is `#` and its SHA-256, which no short id can be.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lakesync.adapters.arrow import hashes_of
from lakesync.adapters.contents import RowId
from lakesync.adapters.pieces import in_order
from lakesync.adapters.sql.dialect import Column

if TYPE_CHECKING:
    import pyarrow as pa

DELTAS = "lakesync_deltas"

STORED = (
    Column("hlc", "integer"),
    Column("client_id", "id"),
    Column("delta_id", "name"),
    Column("gateway", "name"),
    Column("arrival", "integer"),
    Column("table_name", "name"),
    Column("row_id", "id"),
    Column("op", "name"),
    Column("columns", "text"),
    Column("long_id", "id", required=False),
)
KEY = ("hlc", "client_id", "delta_id", "gateway")
INDEXES = {"lakesync_by_arrival": ("arrival",), "lakesync_by_row": ("row_id", "table_name")}
TRUE_ID = "COALESCE(long_id, delta_id)"
"""A delta's id, as SQL."""

_SHORT = 64
_HASH = r"^[0-9a-f]{64}$"


def stored_rows(deltas: pa.Table) -> pa.Table:
    """Deltas, in either form, as rows of the table: in order of its key, each once; their columns as they came."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = deltas
    ids = table.column("delta_id").cast(pa.string())
    absent = pa.nulls(len(table), pa.string())
    if not _are_short(ids):
        long = pc.and_(pc.greater_equal(pc.utf8_length(ids), _SHORT), pc.invert(pc.match_substring_regex(ids, _HASH)))
        keys = pa.array(
            [_key(text) if is_long else text for text, is_long in zip(ids.to_pylist(), long.to_pylist(), strict=True)],
            pa.string(),
        )
        table = table.append_column("long_id", pc.if_else(long, ids, absent))
        table = table.set_column(table.schema.get_field_index("delta_id"), "delta_id", keys)
    else:
        table = table.append_column("long_id", absent)
    return in_order(table.select([column.name for column in STORED]), "hlc")  # whose order is that of the key


def _are_short(ids: pa.ChunkedArray) -> bool:
    """Whether all ids fit the key as they are, as ids that were made here do."""
    import pyarrow.compute as pc

    return (
        all(hashes_of(chunk) is not None for chunk in ids.chunks)
        or not pc.any(pc.greater_equal(pc.utf8_length(ids), _SHORT)).as_py()
    )


def rows_named(deltas: pa.Table, table: str) -> list[RowId]:
    """A table's rows that deltas are of, each once."""
    import pyarrow.compute as pc

    own = deltas.filter(pc.equal(deltas.column("table_name"), table))
    return list(dict.fromkeys(zip(own.column("gateway").to_pylist(), own.column("row_id").to_pylist(), strict=True)))


def _key(delta_id: str) -> str:
    return "#" + hashlib.sha256(delta_id.encode()).hexdigest()[1:]
