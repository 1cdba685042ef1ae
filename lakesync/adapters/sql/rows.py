"""Contents as rows of a table: what each column's value is where the column has a type, and what does not fit it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.dead_letters import DeadLetter
from lakesync.model.hlc import wall_of
from lakesync.model.schema import Column, ColumnType, TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_NO_TEXT = re.compile(rb"\\u(0000|[dD][89a-fA-F])")
"""Escapes that a database's text or JSON may refuse: NUL, and halves of a pair."""
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_LAST_MS = 253_402_300_799_000
"""The last second of the year 9999, behind which databases have no instants."""

_decode = msgspec.json.Decoder().decode


class _Misfit(Exception):  # noqa: N818 it never leaves this module
    """A value does not fit its column; says why."""


class Rows(NamedTuple):
    """What is to be written of a table's rows."""

    shown: pa.Table
    """As `rows_schema` describes."""
    gone: list[RowId]
    """Rows that the table does not have."""
    letters: list[DeadLetter]
    """Values that are null in `shown`, as they do not fit their column."""


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
    """`gateway`, `row_id`, the schema's columns, `synced_at`, `last_arrival` and, with soft delete, `deleted_at`.

    Strings, numbers (as JSON text) and JSON are strings, booleans are booleans, instants milliseconds in UTC.
    """
    import pyarrow as pa

    instant = pa.timestamp("ms", "UTC")
    fields = [(own_column(schema, "gateway"), pa.string()), ("row_id", pa.string())]
    fields += [(each.name, pa.bool_() if each.type == "boolean" else pa.string()) for each in shown_columns(schema)]
    fields += [(own_column(schema, "synced_at"), instant), (own_column(schema, "last_arrival"), pa.int64())]
    if schema.soft_delete:
        fields.append((own_column(schema, "deleted_at"), instant))
    return pa.schema(fields)


def rows_of(
    schema: TableSchema, contents: Mapping[RowId, RowContent], now_ms: int, json_depth: int | None = None
) -> Rows:
    """Contents as rows to write; the deltas keep what does not fit.

    Args:
        schema: the table's.
        contents: by row.
        now_ms: for `synced_at`, milliseconds since 1970.
        json_depth: the deepest JSON value that the database takes; None for no limit.
    """
    import pyarrow as pa

    shown = {row: each for row, each in contents.items() if _is_shown(schema, each)}
    cells = [(each.state if each.state.visible else each.kept).values() for each in shown.values()]
    letters: list[DeadLetter] = []
    columns: list[list[Any]] = [[gateway for gateway, _ in shown], [row_id for _, row_id in shown]]
    for column in shown_columns(schema):
        read = _READ[column.type]
        values: list[str | bool | None] = []
        for row, (gateway, row_id) in zip(cells, shown, strict=True):
            raw = row.get(column.name)
            if raw is None:
                values.append(None)
                continue
            text = bytes(raw)
            try:
                if json_depth is not None and column.type == "json" and _depth(text) > json_depth:
                    raise _Misfit(f"the database takes JSON of at most {json_depth} levels")
                values.append(read(text))
            except _Misfit as misfit:
                values.append(None)
                letters.append(DeadLetter(gateway, schema.table, row_id, column.name, text.decode(), str(misfit)))
        columns.append(values)
    columns.append([now_ms] * len(shown))
    columns.append([each.arrival for each in shown.values()])
    if schema.soft_delete:
        columns.append([_deleted_ms(each) for each in shown.values()])
    wanted = rows_schema(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, wanted, strict=True)]
    gone = [row for row in contents if row not in shown]
    return Rows(pa.Table.from_arrays(arrays, schema=wanted), gone, letters)


def _is_shown(schema: TableSchema, content: RowContent) -> bool:
    if content.state.visible and not content.is_hidden:
        return True
    return schema.soft_delete and content.is_deleted


def _deleted_ms(content: RowContent) -> int | None:
    """When a row was deleted: by its writer's clock, or where a filter hides it, by its gateway's."""
    if content.is_hidden:
        return min(wall_of(content.arrival), _LAST_MS)
    if content.state.visible or content.state.tombstone is None:
        return None
    return min(wall_of(content.state.tombstone[0]), _LAST_MS)


def _depth(text: bytes) -> int:
    """How deeply arrays and objects are nested in a JSON text."""
    depth = deepest = 0
    for byte in _TEXTS.sub(b"", text) if b'"' in text else text:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _string(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    text: str = _decode(raw) if raw[:1] == b'"' else raw.decode()
    if "\0" in text:
        raise _Misfit("a text column takes no NUL character")
    return text


def _number(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    if raw[0] not in b"-0123456789":
        raise _Misfit("the column is a number, the value is none")
    if not math.isfinite(float(raw)):
        raise _Misfit("the number is too large")
    return raw.decode()


def _boolean(raw: bytes) -> bool | None:
    if raw not in _BOOLEANS:
        raise _Misfit("the column is a boolean, the value is none")
    return _BOOLEANS[raw]


def _json(raw: bytes) -> str | None:
    if _NO_TEXT.search(raw):
        raise _Misfit("a JSON column takes no NUL character and no half of a surrogate pair")
    return None if raw == b"null" else raw.decode()


def _null(raw: bytes) -> None:
    if raw != b"null":
        raise _Misfit("the column takes null alone")


_BOOLEANS = {b"true": True, b"false": False, b"null": None}
_READ: dict[ColumnType, Callable[[bytes], str | bool | None]] = {
    "string": _string,
    "number": _number,
    "boolean": _boolean,
    "json": _json,
    "null": _null,
}
