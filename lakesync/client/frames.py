"""Frames of a query's result, or of a whole table, for pandas, polars and Arrow: whichever is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakesync.client.database import asked, reader
from lakesync.extras import extra
from lakesync.schema import TableSchema

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Columns = Mapping[str, Sequence[Any]]


def columns(path: Path, schema: TableSchema | None, sql: str, params: Any) -> dict[str, list[Any]]:
    """A result by column.

    Args:
        schema: of the table that `sql` names, where it is no query: its booleans are Python's own; JSON stays text.
    """
    types = {} if schema is None else schema.types
    if schema is not None:
        listed = ", ".join(["row_id", *(f'"{name}"' for name in types)])
        sql = f'SELECT {listed} FROM "{schema.table}" ORDER BY row_id'
    with closing(reader(path)) as db:
        cursor = asked(db, sql, params)
        names = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
    found = list(zip(*rows, strict=True)) if rows else [() for _ in names]
    return {
        name: [None if cell is None else bool(cell) for cell in cells] if types.get(name) == "boolean" else list(cells)
        for name, cells in zip(names, found, strict=True)
    }


def to_pandas(found: Columns) -> pd.DataFrame:
    """A pandas frame."""
    with extra("pandas", "to_pandas needs pandas"):
        import pandas as pd
    return pd.DataFrame(found)


def to_polars(found: Columns) -> pl.DataFrame:
    """A polars frame; a column of several types has the one that holds all of them."""
    with extra("polars", "to_polars needs polars"):
        import polars as pl
    return pl.DataFrame(found, strict=False)


def to_arrow(found: Columns) -> pa.Table:
    """An Arrow table."""
    with extra("parquet", "to_arrow needs pyarrow"):
        import pyarrow as pa
    return pa.table(found)
