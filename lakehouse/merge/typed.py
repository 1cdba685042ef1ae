"""Cells to typed columns over Arrow, as `lakehouse.merge.project` does it with expressions."""

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


def projected(merged: Merged, columns: Sequence[tuple[str, str]], rejected: str) -> pa.Table:
    """The states with a typed column for each `(name, schema type)`, and the number of values that do not fit.

    Args:
        merged: row states.
        columns: as `lakehouse.merge.project.project` takes them.
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
    """JSON texts as values of a column; null where there is none or it does not fit."""
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
