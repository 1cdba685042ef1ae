"""Cells to typed columns over Arrow: a value that does not fit is null there, and counted.

string → string, number → double, boolean → boolean, json → the JSON text, null → string that is always null. JSON null
is null in every type. Columns that the schema does not name stay in `_cells` alone.
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

    from lakehouse.merge.kernel import Merged


MISFITS = pa.schema([(name, pa.string()) for name in ("_gateway", "_row", "column", "type", "value")])
"""The columns of the result of `misfits`."""


def projected(merged: Merged, columns: Sequence[tuple[str, str]], rejected: str) -> pa.Table:
    """The states with a typed column for each `(name, schema type)`, and the number of values that do not fit.

    Args:
        merged: row states.
        columns: names and schema types.
        rejected: name of the last column.
    """
    states, rows = merged.states, merged.states.num_rows
    misfits = np.zeros(rows, np.int32)
    place_of = {name: place for place, name in enumerate(merged.names)}
    for name, kind in columns:
        cells = np.flatnonzero(merged.column == place_of[name]) if name in place_of else np.array([], np.int64)
        where = np.full(rows, -1, np.int64)
        where[merged.row[cells]] = cells
        texts = merged.values.take(pa.array(where, mask=where < 0))
        typed = typed_values(texts, kind)
        given = pc.fill_null(pc.not_equal(texts, "null"), fill_value=False)
        misfits += pc.and_(given, pc.is_null(typed)).to_numpy(zero_copy_only=False).astype(np.int32)
        states = states.append_column(name, typed)
    return states.append_column(rejected, pa.array(misfits))


def typed_values(texts: pa.Array, kind: str) -> pa.Array:
    """Return JSON texts as values of a column; null for a missing text, and for one that does not fit.

    Args:
        texts: the JSON.
        kind: the column's type in the schema.
    """
    match kind:
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
    raise ValueError(f"no such column type: {kind!r}")


def _strings(texts: pa.Array) -> pa.Array:
    quoted = pc.if_else(pc.starts_with(texts, '"'), texts, pa.scalar(None, pa.string()))
    plain = pc.utf8_slice_codeunits(quoted, 1, -1)
    escaped = np.flatnonzero(pc.fill_null(pc.match_substring(plain, "\\"), fill_value=False))
    if not len(escaped):
        return plain
    read = [msgspec.json.decode(text) for text in quoted.take(pa.array(escaped)).to_pylist()]
    mask = np.zeros(len(texts), bool)
    mask[escaped] = True
    return pc.replace_with_mask(plain, pa.array(mask), pa.array(read, pa.string()))


def _numbers(texts: pa.Array) -> pa.Array:
    numeric = pc.match_substring_regex(texts, r"^-?[0-9]")
    chosen = pc.if_else(numeric, texts, pa.scalar(None, pa.string()))
    try:
        return pc.cast(chosen, pa.float64())
    except pa.ArrowInvalid:  # what is no JSON number, or beyond the range that Arrow reads
        return pa.array([_number(text) for text in chosen.to_pylist()], pa.float64())


def _number(text: str | None) -> float | None:
    try:
        found = float(text) if text is not None else None
    except ValueError:
        return None
    return found if found is None or math.isfinite(found) else None


def misfits(rows: pa.Table, columns: Sequence[tuple[str, str]]) -> pa.Table:
    """Live values that do not fit their column: `_gateway`, `_row`, `column`, `type`, and `value`, its JSON text.

    Args:
        rows: with `_gateway`, `_row` and `_cells`.
        columns: typed columns with their schema types.
    """
    rows = rows.combine_chunks()
    cells = pa.concat_arrays([*rows["_cells"].chunks, pa.array([], rows.schema.field("_cells").type)])
    ends = np.asarray(cells.offsets)
    owner = np.repeat(np.arange(rows.num_rows), np.diff(ends))
    names, items = (each.slice(ends[0], ends[-1] - ends[0]) for each in (cells.keys, cells.items))
    texts = pc.struct_field(items, "value")
    found = [MISFITS.empty_table()]
    for name, kind in columns:
        own = np.flatnonzero(np.asarray(pc.equal(names, name)))
        values = texts.take(pa.array(own))
        unfit = pc.and_(pc.is_null(typed_values(values, kind)), pc.not_equal(values, "null"))
        places = owner[own[np.asarray(unfit)]]
        keys = rows.select(["_gateway", "_row"]).take(pa.array(places))
        texts_of = [pa.repeat(name, len(places)), pa.repeat(kind, len(places)), values.filter(unfit)]
        found.append(pa.table([*keys.columns, *texts_of], MISFITS))
    return pa.concat_tables(found)
