"""Merged states as rows of a table: what each column's value is where the column has a type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from lakesync.lww import RowState
from lakesync.schema import Column, ColumnType, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_NO_TEXT = re.compile(rb"\\u(0000|[dD][89a-fA-F])")
"""Escapes that a database's text or JSON may refuse: NUL, and halves of a pair."""

_decode = msgspec.json.Decoder().decode


def shown_columns(schema: TableSchema) -> list[Column]:
    """The schema's columns that a table of rows has; the one called `row_id` gives way to the row's id."""
    return [column for column in schema.columns if column.name.lower() != "row_id"]


def own_column(schema: TableSchema, name: str) -> str:
    """What a table of rows calls a column of its own: with `_` before it where the schema has one of that name."""
    taken = {column.name.lower() for column in schema.columns}
    while name in taken:
        name = f"_{name}"
    return name


def rows_schema(schema: TableSchema) -> pa.Schema:
    """`row_id`, the schema's columns, `synced_at` and, with soft delete, `deleted_at`, which is null.

    Strings, numbers (as JSON text) and JSON are strings, booleans are booleans, instants milliseconds in UTC.
    """
    import pyarrow as pa

    fields = [("row_id", pa.string())]
    fields += [(each.name, pa.bool_() if each.type == "boolean" else pa.string()) for each in shown_columns(schema)]
    fields.append((own_column(schema, "synced_at"), pa.timestamp("ms", "UTC")))
    if schema.soft_delete:
        fields.append((own_column(schema, "deleted_at"), pa.timestamp("ms", "UTC")))
    return pa.schema(fields)


def rows_table(schema: TableSchema, states: Mapping[str, RowState], now_ms: int) -> pa.Table:
    """Visible states as a table that `rows_schema` describes.

    A value that does not fit its column's type is null there; the deltas have it.
    """
    import pyarrow as pa

    cells = [state.values() for state in states.values()]
    columns: list[list[Any]] = [list(states)]
    for column in shown_columns(schema):
        read, name = _READ[column.type], column.name
        columns.append([None if (raw := row.get(name)) is None else read(bytes(raw)) for row in cells])
    columns.append([now_ms] * len(cells))
    if schema.soft_delete:
        columns.append([None] * len(cells))
    wanted = rows_schema(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, wanted, strict=True)]
    return pa.Table.from_arrays(arrays, schema=wanted)


def _string(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    text: str | None = _decode(raw) if raw[:1] == b'"' else raw.decode()
    return None if text is None or "\0" in text else text


def _number(raw: bytes) -> str | None:
    if raw[0] not in b"-0123456789" or not math.isfinite(float(raw)):
        return None
    return raw.decode()


def _boolean(raw: bytes) -> bool | None:
    return {b"true": True, b"false": False}.get(raw)


def _json(raw: bytes) -> str | None:
    return None if raw == b"null" or _NO_TEXT.search(raw) else raw.decode()


def _null(raw: bytes) -> None:  # noqa: ARG001 a column of this type has no other value
    return None


_READ: dict[ColumnType, Callable[[bytes], str | bool | None]] = {
    "string": _string,
    "number": _number,
    "boolean": _boolean,
    "json": _json,
    "null": _null,
}
