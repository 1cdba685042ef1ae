"""Converts values of rows to the types of a destination table, and finds those that do not fit their column.

A *destination table* has the current rows of one synced table, with typed columns. The *content* of a row
(`RowContent`) is the merge of all its deltas, the changes that clients have made. A *dead letter* is a value that
cannot be stored: it is listed with the reason, and null in the row. `row_tables` calls this module to write rows. A
*gateway* is one app's stream of changes, an *arrival* its timestamp of a commit.

Besides the schema's columns, a destination table has these *system columns*: `gateway` and `row_id`, the key;
`synced_at`, when the row was written; `last_arrival`, the arrival of its newest delta; `deleted_at`, with soft delete;
`checksum`, a hash of the row's values by which copies are compared; and `props`, which belongs to the user.

The conversion differs from the lake's (`lakehouse.tables.typed_columns`) on purpose: a string column accepts any JSON
value as text, and numbers stay exact decimal text for the database to parse. In everything else both agree
(`tests/property/test_typed_columns.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lakesync.adapters.base import DeadLetter
from lakesync.adapters.deltas import RowContent, RowId
from lakesync.adapters.sql.backend import Column as SqlColumn
from lakesync.model.hlc import wall_of
from lakesync.model.schema import Column, ColumnType, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|u(0000|[dD][89a-fA-F])|.)")
"""One escape in JSON, or two for a surrogate pair. Group 1 matches the escapes that a database's JSON type may reject:
NUL and lone surrogates. An escaped backslash is a match of its own, so text that follows it is not taken for an escape.
"""
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
"""A string in JSON, in which brackets do not nest."""
_LAST_MS = 253_402_300_799_000
"""The last second of the year 9999, the maximum of databases' timestamps, in milliseconds since 1970."""

_decode = msgspec.json.Decoder().decode


class _Misfit(Exception):  # noqa: N818 private to this module
    """A value does not fit its column. The message is the dead letter's reason."""


class RowValues(NamedTuple):
    """The rows to write to a destination table, and those to delete from it."""

    rows: pa.Table
    """With the columns of `rows_schema`."""
    removed: list[RowId]
    """Rows to delete from the table."""
    letters: list[DeadLetter]
    """Values that are null in `rows` because they do not fit their column."""


def user_columns(schema: TableSchema) -> list[Column]:
    """Return the schema's columns, without one named `row_id`: that name has the row's id in a destination table."""
    return [column for column in schema.columns if column.name.lower() != "row_id"]


def system_column(schema: TableSchema, name: str) -> str:
    """Return the name of a system column, prefixed with `_` as often as needed to differ from the schema's columns.

    Args:
        schema: the table's schema.
        name: the column's usual name.
    """
    used_names = {column.name.lower() for column in schema.columns}
    while name in used_names:
        name = f"_{name}"
    return name


def key_of(schema: TableSchema) -> tuple[str, str]:
    """Return the columns of the table's primary key: those of the gateway and the row id."""
    return (system_column(schema, "gateway"), "row_id")


def cell_columns(schema: TableSchema) -> list[SqlColumn]:
    """Return the columns with the user's values."""
    return [
        SqlColumn(column.name, "string" if column.type == "null" else column.type, required=False)
        for column in user_columns(schema)
    ]


def loaded_columns(schema: TableSchema) -> list[SqlColumn]:
    """Return the columns whose values `row_values` computes; the database fills `checksum` and `props`."""
    gateway, row_id = key_of(schema)
    columns = [SqlColumn(gateway, "name"), SqlColumn(row_id, "id"), *cell_columns(schema)]
    columns += [
        SqlColumn(system_column(schema, "synced_at"), "time", required=False),
        SqlColumn(system_column(schema, "last_arrival"), "integer", required=False),
    ]
    if schema.soft_delete:
        columns.append(SqlColumn(system_column(schema, "deleted_at"), "time", required=False))
    return columns


def rows_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of `loaded_columns`. Numbers and JSON are JSON texts; times are milliseconds in UTC."""
    import pyarrow as pa

    types = {"boolean": pa.bool_(), "integer": pa.int64(), "time": pa.timestamp("ms", "UTC")}
    return pa.schema([(column.name, types.get(column.kind, pa.string())) for column in loaded_columns(schema)])


def row_values(
    schema: TableSchema,
    contents: Mapping[RowId, RowContent],
    now_ms: int,
    max_json_depth: int | None = None,
    fold: Callable[[str], str] = str,
) -> RowValues:
    """Convert contents to rows to write.

    JSON null becomes null. A value that does not fit its column becomes null and a dead letter.

    Args:
        schema: the table's schema.
        contents: row → content.
        now_ms: value of `synced_at`, milliseconds since 1970.
        max_json_depth: the database's nesting limit for JSON; None if it has none.
        fold: `Dialect.folded`, which returns the same text for all spellings of a column's name.
    """
    import pyarrow as pa

    written = {row: each for row, each in contents.items() if _is_written(schema, each)}
    # a deleted row that is kept for soft delete has the values from before its DELETE
    states = [each.state if each.state.visible else each.retained for each in written.values()]
    cells = [{fold(name): raw for name, raw in state.values().items()} for state in states]
    letters: list[DeadLetter] = []
    columns: list[list[Any]] = [[gateway for gateway, _ in written], [row_id for _, row_id in written]]
    for column in user_columns(schema):
        convert = _CONVERTERS[column.type]
        values: list[str | bool | None] = []
        for row, (gateway, row_id) in zip(cells, written, strict=True):
            raw = row.get(fold(column.name))
            if raw is None:
                values.append(None)
                continue
            text = bytes(raw)
            try:
                if max_json_depth is not None and column.type == "json" and _depth(text) > max_json_depth:
                    raise _Misfit(f"JSON is nested deeper than the database's limit of {max_json_depth} levels")
                values.append(convert(text))
            except _Misfit as misfit:
                values.append(None)
                letters.append(DeadLetter(gateway, schema.table, row_id, column.name, text.decode(), str(misfit)))
        columns.append(values)
    columns.append([now_ms] * len(written))
    columns.append([each.arrival for each in written.values()])
    if schema.soft_delete:
        columns.append([_deleted_ms(each) for each in written.values()])
    arrow_schema = rows_schema(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow_schema, strict=True)]
    removed = [row for row in contents if row not in written]
    return RowValues(pa.Table.from_arrays(arrays, schema=arrow_schema), removed, letters)


def _is_written(schema: TableSchema, content: RowContent) -> bool:
    """Return whether a row is in the destination table, alive or marked as deleted."""
    if content.state.visible and not content.is_hidden:
        return True
    return schema.soft_delete and content.is_deleted


def _deleted_ms(content: RowContent) -> int | None:
    """Return when a row was deleted, in milliseconds since 1970; None if it is alive.

    That is the hlc (the client's timestamp) of its DELETE or, if a flow's filter hides the row, the arrival (the
    gateway's timestamp) of its newest delta.
    """
    if content.is_hidden:
        return min(wall_of(content.arrival), _LAST_MS)
    if content.state.visible or content.state.tombstone is None:
        return None
    return min(wall_of(content.state.tombstone[0]), _LAST_MS)


def _depth(text: bytes) -> int:
    """Return the nesting depth of arrays and objects in a JSON text."""
    depth = deepest = 0
    for byte in _JSON_STRING.sub(b"", text) if b'"' in text else text:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


# The functions below convert the JSON text of a value for a column of one type. They raise _Misfit if it does not fit.


def _string(raw: bytes) -> str | None:
    """Convert the JSON of a value in a column of type string; other JSON is stored as its text."""
    if raw == b"null":
        return None
    text: str = _decode(raw) if raw[:1] == b'"' else raw.decode()
    if "\0" in text:
        raise _Misfit("a text column cannot store NUL characters")
    return text


def _number(raw: bytes) -> str | None:
    """Convert the JSON of a number to text, which the database parses."""
    if raw == b"null":
        return None
    if raw[0] not in b"-0123456789":
        raise _Misfit("the column's type is number, the value is not a number")
    if not math.isfinite(float(raw)):
        raise _Misfit("the number is too large for a double")
    return raw.decode()


def _boolean(raw: bytes) -> bool | None:
    """Convert the JSON of a boolean or null."""
    if raw not in _BOOLEANS:
        raise _Misfit("the column's type is boolean, the value is not a boolean")
    return _BOOLEANS[raw]


def _json(raw: bytes) -> str | None:
    """Convert the JSON of a value in a column of type json: its text."""
    if b"\\u" in raw and any(escape[1] for escape in _ESCAPE.finditer(raw)):
        raise _Misfit("a JSON column cannot store NUL characters or lone surrogates")
    return None if raw == b"null" else raw.decode()


def _null(raw: bytes) -> None:
    """Check a value in a column of type null."""
    if raw != b"null":
        raise _Misfit("the column's type is null, the value is not null")


_BOOLEANS = {b"true": True, b"false": False, b"null": None}
_CONVERTERS: dict[ColumnType, Callable[[bytes], str | bool | None]] = {
    "string": _string,
    "number": _number,
    "boolean": _boolean,
    "json": _json,
    "null": _null,
}
