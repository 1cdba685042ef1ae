"""Fills a state table's typed columns from its cells, over Arrow. A value that does not fit its column becomes null.

A state table stores each value twice: as JSON text in the column `_cells` (a cell), and in a column of its own with the
type that the schema declares: string → string, number → double, boolean → boolean, json → the JSON text, null → a
string that is always null. Values without a declared type are only in `_cells`. `lakehouse.tables.merge_job` calls
`with_typed_columns` for the rows that it merges. `lakehouse.tables.writes` calls `misfits` to count the values that do
not fit, and to list them in a table of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakehouse.tables.kernel import Merged


MISFITS = pa.schema([(name, pa.string()) for name in ("_gateway", "_row", "column", "type", "value")])
"""The columns of the result of `misfits`."""


def with_typed_columns(merged: Merged, columns: Sequence[tuple[str, str]], rejected: str) -> pa.Table:
    """Return merged rows with typed columns, and a last column with each row's number of values that do not fit.

    Args:
        merged: the result of a merge: rows, and their cells as parallel arrays. Of cell `i`, `row[i]` is the index of
            its row in `states`, and `column[i]` that of its column's name in `names`.
        columns: name and schema type of each typed column.
        rejected: name of the last column.
    """
    states, rows = merged.states, merged.states.num_rows
    misfits = np.zeros(rows, np.int32)
    index_of_column = {name: number for number, name in enumerate(merged.names)}
    for name, column_type in columns:
        cells = (
            np.flatnonzero(merged.column == index_of_column[name])
            if name in index_of_column
            else np.array([], np.int64)
        )
        cell_of_row = np.full(rows, -1, np.int64)  # -1: the row has no value in the column
        cell_of_row[merged.row[cells]] = cells
        texts = merged.values.take(pa.array(cell_of_row, mask=cell_of_row < 0))
        typed = typed_values(texts, column_type)
        has_value = pc.fill_null(pc.not_equal(texts, "null"), fill_value=False)  # a cell, and not JSON null
        misfits += pc.and_(has_value, pc.is_null(typed)).to_numpy(zero_copy_only=False).astype(np.int32)
        states = states.append_column(name, typed)
    return states.append_column(rejected, pa.array(misfits))


def typed_values(texts: pa.Array, column_type: str) -> pa.Array:
    """Convert JSON texts to values of a typed column; null for no text, JSON null, and a value that does not fit.

    Args:
        texts: JSON texts.
        column_type: the column's type in the schema.

    Raises:
        ValueError: there is no such type.
    """
    match column_type:
        case "string":
            return _strings(texts)
        case "number":
            return _numbers(texts)
        case "boolean":
            named = pc.is_in(texts, pa.array(["true", "false"]))
            return pc.if_else(named, pc.equal(texts, "true"), pa.scalar(None, pa.bool_()))
        case "json":
            return pc.if_else(pc.not_equal(texts, "null"), texts, pa.scalar(None, pa.string()))
        case "null":
            return pa.nulls(len(texts), pa.string())
    raise ValueError(f"no such column type: {column_type!r}")


def misfits(rows: pa.Table, columns: Sequence[tuple[str, str]]) -> pa.Table:
    """Return the current values that do not fit their typed column, in the columns `MISFITS`; `value` is the JSON text.

    Args:
        rows: rows of a state table, with `_gateway`, `_row` and `_cells`.
        columns: name and schema type of each typed column.
    """
    cells = rows["_cells"].combine_chunks()
    offsets = np.asarray(cells.offsets)
    row_of_cell = np.repeat(np.arange(rows.num_rows), np.diff(offsets))
    # `keys` and `items` may also have those of other rows, if `cells` is a slice
    names, items = (each.slice(offsets[0], offsets[-1] - offsets[0]) for each in (cells.keys, cells.items))
    texts = pc.struct_field(items, "value")
    by_column = [MISFITS.empty_table()]  # a table for each column
    for name, column_type in columns:
        cells_of_column = np.flatnonzero(np.asarray(pc.equal(names, name)))
        values = texts.take(pa.array(cells_of_column))
        unfit = pc.and_(pc.is_null(typed_values(values, column_type)), pc.not_equal(values, "null"))
        unfit_rows = row_of_cell[cells_of_column[np.asarray(unfit)]]
        keys = rows.select(["_gateway", "_row"]).take(pa.array(unfit_rows))
        others = [pa.repeat(name, len(unfit_rows)), pa.repeat(column_type, len(unfit_rows)), values.filter(unfit)]
        by_column.append(pa.table([*keys.columns, *others], MISFITS))
    return pa.concat_tables(by_column)


def _strings(texts: pa.Array) -> pa.Array:
    """Return the values of JSON strings; null for other JSON."""
    quoted = pc.if_else(pc.starts_with(texts, '"'), texts, pa.scalar(None, pa.string()))
    plain = pc.utf8_slice_codeunits(quoted, 1, -1)
    escaped = np.flatnonzero(pc.fill_null(pc.match_substring(plain, "\\"), fill_value=False))
    if not len(escaped):
        return plain
    decoded = [msgspec.json.decode(text) for text in quoted.take(pa.array(escaped)).to_pylist()]
    mask = np.zeros(len(texts), bool)
    mask[escaped] = True
    return pc.replace_with_mask(plain, pa.array(mask), pa.array(decoded, pa.string()))


def _numbers(texts: pa.Array) -> pa.Array:
    """Return the numbers of JSON texts; null for other texts and for numbers beyond float64."""
    numeric = pc.match_substring_regex(texts, r"^-?[0-9]")
    chosen = pc.if_else(numeric, texts, pa.scalar(None, pa.string()))
    try:
        numbers = pc.cast(chosen, pa.float64())
    except pa.ArrowInvalid:  # a text is not a JSON number, or beyond the range that Arrow reads
        return pa.array([_number(text) for text in chosen.to_pylist()], pa.float64())
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))  # Arrow reads 1e400 as infinite


def _number(text: str | None) -> float | None:
    """Return the number of one JSON text; None for no text, other texts, and numbers beyond float64."""
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is None or math.isfinite(number) else None
