"""A scratch table of rows' keys, for statements about many rows."""

from __future__ import annotations

from collections.abc import Collection

from lakesync.adapters.contents import RowId
from lakesync.adapters.sql.dialect import Column, Dialect
from lakesync.adapters.sql.executor import Connection

KEYS = "lakesync_keys"
_COLUMNS = (Column("gateway", "name"), Column("row_id", "id"))


def load_keys(connection: Connection, dialect: Dialect, rows: Collection[RowId]) -> None:
    """Load rows' keys into the scratch table `KEYS`: `gateway` and `row_id`."""
    import pyarrow as pa

    for statement in dialect.scratch(KEYS, _COLUMNS, ("gateway", "row_id")):
        connection.execute(statement)
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(2)]
    connection.load(KEYS, pa.table(columns, ["gateway", "row_id"]))
