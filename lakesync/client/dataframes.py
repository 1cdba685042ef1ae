"""Results of queries as pandas, polars or Arrow frames, for `Client.to_pandas`, `to_polars` and `to_arrow`.

The queries run in a connection of their own that cannot write. The type of a column follows from its values. If a whole
table is read, its schema gives the types of columns without values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lakesync.client.sqlite.database import connect_read_only, run_query
from lakesync.model.optional_imports import extra
from lakesync.model.schema import ColumnType, TableSchema

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class Column(NamedTuple):
    """A column of a result."""

    cells: list[Any]
    """The column's values, one for each row."""
    kind: ColumnType | None
    """The column's type in the table's schema, if it is known and every cell is NULL. None: its type follows from the
    cells."""


Columns = Mapping[str, Column]
"""The columns of a result by name."""
_NAME = re.compile(r"\w+")
"""A table's name, as distinguished from a query."""


def read_columns(path: Path, schema: TableSchema | None, sql: str, params: Any) -> Columns:
    """Run a query and return its result by column.

    Args:
        path: the app's database.
        schema: the table's schema if `sql` is the name of a synced table, else None. Its booleans become bool; JSON
            stays text.
        sql: a query, or the name of a table.
        params: values for the query's placeholders.

    Raises:
        ValidationError: the statement returns no rows, or writes.
    """
    types: dict[str, ColumnType] = {} if schema is None else {"row_id": "string", **schema.types}
    if schema is not None:
        names = ", ".join(f'"{name}"' for name in types)
        sql = f'SELECT {names} FROM "{schema.table}" ORDER BY row_id'
    elif _NAME.fullmatch(sql):
        sql = f'SELECT * FROM "{sql}"'
    with closing(connect_read_only(path)) as db:
        cursor = run_query(db, sql, params)
        result_names = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
    columns = list(zip(*rows, strict=True)) if rows else [() for _ in result_names]
    return {name: _column(types.get(name), cells) for name, cells in zip(result_names, columns, strict=True)}


def to_pandas(columns: Columns) -> pd.DataFrame:
    """Return a result as a pandas frame.

    Raises:
        ConfigurationError: pandas is not installed.
    """
    with extra("pandas", "to_pandas needs pandas"):
        import pandas as pd

    def series(cells: list[Any], kind: ColumnType | None) -> pd.Series[Any]:
        if kind == "number":
            return pd.Series(cells, dtype="float64")
        type_if_empty = "bool" if kind == "boolean" else "object"
        return pd.Series(cells, dtype=type_if_empty if kind is not None and not cells else None)

    return pd.DataFrame({name: series(*column) for name, column in columns.items()})


def to_polars(columns: Columns) -> pl.DataFrame:
    """Return a result as a polars frame. A column with values of several types gets a type for all of them.

    Raises:
        ConfigurationError: polars is not installed.
    """
    with extra("polars", "to_polars needs polars"):
        import polars as pl
    kinds = {None: None, "number": pl.Float64, "boolean": pl.Boolean}
    return pl.DataFrame(
        [pl.Series(name, cells, kinds.get(kind, pl.String), strict=False) for name, (cells, kind) in columns.items()]
    )


def to_arrow(columns: Columns) -> pa.Table:
    """Return a result as an Arrow table.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    with extra("parquet", "to_arrow needs pyarrow"):
        import pyarrow as pa
    kinds = {None: None, "number": pa.float64(), "boolean": pa.bool_()}
    return pa.table({name: pa.array(cells, kinds.get(kind, pa.string())) for name, (cells, kind) in columns.items()})


def _column(kind: ColumnType | None, cells: Sequence[Any]) -> Column:
    """Return a column with booleans as bool, and with integers as float if the column has floats too.

    Args:
        kind: the column's type in the schema; None if it is not a synced table's.
        cells: the values as SQLite returns them.
    """
    types = {type(cell) for cell in cells} - {type(None)}
    if not types:
        return Column(list(cells), kind)
    if kind == "boolean":
        return Column([None if cell is None else bool(cell) for cell in cells], None)
    if types == {int, float}:  # Arrow does not convert large integers to doubles by itself
        return Column([float(cell) if type(cell) is int else cell for cell in cells], None)
    return Column(list(cells), None)
