"""Frames of a query's result, or of a whole table, for pandas, polars and Arrow: whichever is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lakesync.client.database import asked, reader
from lakesync.model.optional_imports import extra
from lakesync.model.schema import ColumnType, TableSchema

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class Column(NamedTuple):
    """A column of a result."""

    cells: list[Any]
    kind: ColumnType | None
    """What it is declared to hold, where no cell says so."""


Columns = Mapping[str, Column]
_NAME = re.compile(r"\w+")


def columns(path: Path, schema: TableSchema | None, sql: str, params: Any) -> Columns:
    """A result by column, or a whole table where `sql` is its name alone.

    Args:
        schema: of that table, where it is synchronised: its booleans are Python's own; JSON stays text.
    """
    types: dict[str, ColumnType] = {} if schema is None else {"row_id": "string", **schema.types}
    if schema is not None:
        listed = ", ".join(f'"{name}"' for name in types)
        sql = f'SELECT {listed} FROM "{schema.table}" ORDER BY row_id'
    elif _NAME.fullmatch(sql):
        sql = f'SELECT * FROM "{sql}"'
    with closing(reader(path)) as db:
        cursor = asked(db, sql, params)
        names = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
    found = list(zip(*rows, strict=True)) if rows else [() for _ in names]
    return {name: _column(types.get(name), cells) for name, cells in zip(names, found, strict=True)}


def to_pandas(found: Columns) -> pd.DataFrame:
    """A pandas frame."""
    with extra("pandas", "to_pandas needs pandas"):
        import pandas as pd

    def series(cells: list[Any], kind: ColumnType | None) -> pd.Series[Any]:
        if kind == "number":
            return pd.Series(cells, dtype="float64")
        empty = "bool" if kind == "boolean" else "object"
        return pd.Series(cells, dtype=empty if kind is not None and not cells else None)

    return pd.DataFrame({name: series(*column) for name, column in found.items()})


def to_polars(found: Columns) -> pl.DataFrame:
    """A polars frame; a column of several types has the one that holds all of them."""
    with extra("polars", "to_polars needs polars"):
        import polars as pl
    kinds = {None: None, "number": pl.Float64, "boolean": pl.Boolean}
    return pl.DataFrame(
        [pl.Series(name, cells, kinds.get(kind, pl.String), strict=False) for name, (cells, kind) in found.items()]
    )


def to_arrow(found: Columns) -> pa.Table:
    """An Arrow table."""
    with extra("parquet", "to_arrow needs pyarrow"):
        import pyarrow as pa
    kinds = {None: None, "number": pa.float64(), "boolean": pa.bool_()}
    return pa.table({name: pa.array(cells, kinds.get(kind, pa.string())) for name, (cells, kind) in found.items()})


def _column(kind: ColumnType | None, cells: Sequence[Any]) -> Column:
    held = {type(cell) for cell in cells} - {type(None)}
    if not held:
        return Column(list(cells), kind)
    if kind == "boolean":
        return Column([None if cell is None else bool(cell) for cell in cells], None)
    if held == {int, float}:  # large integers too, which Arrow takes for no doubles
        return Column([float(cell) if type(cell) is int else cell for cell in cells], None)
    return Column(list(cells), None)
