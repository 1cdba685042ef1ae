"""Conversion of single values between JSON (as on the wire), SQLite columns and Python. `sqlite` modules call it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from lakesync.model.delta import jcs_raw
from lakesync.model.errors import ValidationError
from lakesync.model.schema import ColumnType

DECLARED: dict[ColumnType, str] = {
    "string": "TEXT",
    "number": "NUMERIC",
    "boolean": "BOOLEAN",
    "json": "TEXT",
    "null": "TEXT",
}
"""The declared SQL type of a column."""
STRICT_DECLARED: dict[ColumnType, str] = {
    "string": "TEXT",
    "number": "ANY",
    "boolean": "INTEGER",
    "json": "TEXT",
    "null": "TEXT",
}
"""The declared SQL type of a column in a STRICT table."""

SqlValue = str | int | float | None

_ROUND_TRIP_FIRST_BYTES: dict[ColumnType, frozenset[int]] = {
    "string": frozenset(b'"n'),
    "number": frozenset(b"-0123456789n"),
    "boolean": frozenset(b"tfn"),
    "json": frozenset(b'"-0123456789tfn[{'),
    "null": frozenset(b"n"),
}
"""The possible first bytes of JSON values that a column of this type stores without loss; `n` begins null."""
_NULL = Raw(b"null")
_INT64 = range(-(2**63), 2**63)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def to_sql(kind: ColumnType, value: Raw) -> SqlValue:
    """Return a JSON value as a column of this type stores it; a value of another type, as close as SQLite can.

    Args:
        kind: the column's type.
        value: the value as JSON text.
    """
    if kind == "json":
        text = bytes(value).decode()
        return None if text == "null" else text
    decoded: Any = _decode(value)
    if decoded is None or isinstance(decoded, str | float):
        return decoded
    if isinstance(decoded, int):
        return decoded if decoded in _INT64 else float(decoded)
    return bytes(value).decode()


def round_trips(kind: ColumnType, value: Raw) -> bool:
    """Return whether `from_sql(kind, to_sql(kind, value))` is the same value; JSON null always is.

    Args:
        kind: the column's type.
        value: the value as JSON text.
    """
    return memoryview(value)[0] in _ROUND_TRIP_FIRST_BYTES[kind]


def from_sql(kind: ColumnType, value: SqlValue) -> Raw:
    """Return a column's value as JSON.

    Args:
        kind: the column's type.
        value: the value as SQLite returns it.

    Raises:
        UnicodeEncodeError: the text is not valid Unicode.
    """
    if value is None:
        return _NULL
    if kind == "json":
        return Raw(str(value).encode())
    return Raw(_encode(bool(value) if kind == "boolean" else value))


def python_value(kind: ColumnType, value: SqlValue) -> Any:
    """Return a column's value as Python decodes its JSON; JSON without a canonical form stays text.

    Args:
        kind: the column's type.
        value: the value as SQLite returns it.
    """
    if value is None:
        return None
    if kind == "boolean":
        return bool(value)
    if kind == "json":
        try:
            return _decode(jcs_raw(str(value).encode()))
        except ValidationError:
            return str(value)
    return value
