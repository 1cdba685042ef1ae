"""The table of deltas: its columns, and the conversion of Arrow tables to its rows. `delta_writes` calls it.

Its primary key is a delta's identity (hlc, client id, delta id, gateway), in the order that reads by hlc need. Clients
choose delta ids, which may be too long for a key. A long id is stored in the column `long_id`; the key contains `#` and
63 digits of its SHA-256 instead, which no short id can equal.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lakesync.adapters.arrow import hashes_of
from lakesync.adapters.batch_scan import sort_unique
from lakesync.adapters.row_content import RowId
from lakesync.adapters.sql.dialect import Column

if TYPE_CHECKING:
    import pyarrow as pa

DELTAS_TABLE = "lakesync_deltas"

TABLE_COLUMNS = (
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
ID_EXPRESSION = "COALESCE(long_id, delta_id)"
"""SQL expression for the delta id that the client chose."""

_MIN_LONG_CHARS = 64
"""An id of this length or more is long, unless it is a SHA-256."""
_HASH = r"^[0-9a-f]{64}$"


def to_table_rows(deltas: pa.Table) -> pa.Table:
    """Return deltas as rows of the table, sorted by its key, without duplicates. `columns` keeps its form."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = deltas
    ids = table.column("delta_id").cast(pa.string())
    absent = pa.nulls(len(table), pa.string())
    if not _are_short(ids):
        long = pc.and_(
            pc.greater_equal(pc.utf8_length(ids), _MIN_LONG_CHARS), pc.invert(pc.match_substring_regex(ids, _HASH))
        )
        keys = pa.array(
            [
                _key_of_long_id(text) if is_long else text
                for text, is_long in zip(ids.to_pylist(), long.to_pylist(), strict=True)
            ],
            pa.string(),
        )
        table = table.append_column("long_id", pc.if_else(long, ids, absent))
        table = table.set_column(table.schema.get_field_index("delta_id"), "delta_id", keys)
    else:
        table = table.append_column("long_id", absent)
    return sort_unique(table.select([column.name for column in TABLE_COLUMNS]), "hlc")  # hlc order is key order


def _are_short(ids: pa.ChunkedArray) -> bool:
    """Return whether all ids fit the key unchanged."""
    import pyarrow.compute as pc

    return (
        all(hashes_of(chunk) is not None for chunk in ids.chunks)
        or not pc.any(pc.greater_equal(pc.utf8_length(ids), _MIN_LONG_CHARS)).as_py()
    )


def rows_of_table(deltas: pa.Table, table: str) -> list[RowId]:
    """Return the distinct rows of one table among deltas.

    Args:
        deltas: a table in either form.
        table: the table's name.
    """
    import pyarrow.compute as pc

    own = deltas.filter(pc.equal(deltas.column("table_name"), table))
    return list(dict.fromkeys(zip(own.column("gateway").to_pylist(), own.column("row_id").to_pylist(), strict=True)))


def _key_of_long_id(delta_id: str) -> str:
    return "#" + hashlib.sha256(delta_id.encode()).hexdigest()[1:]
