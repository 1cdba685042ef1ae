"""JSON values in an app's SQLite columns, and back."""

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
"""A column's declared type."""
STRICT: dict[ColumnType, str] = {
    "string": "TEXT",
    "number": "ANY",
    "boolean": "INTEGER",
    "json": "TEXT",
    "null": "TEXT",
}
"""The same in a STRICT table."""

SqlValue = str | int | float | None

FITTING: dict[ColumnType, frozenset[int]] = {
    "string": frozenset(b'"n'),
    "number": frozenset(b"-0123456789n"),
    "boolean": frozenset(b"tfn"),
    "json": frozenset(b'"-0123456789tfn[{'),
    "null": frozenset(b"n"),
}
"""By type, the first bytes of the values that come back from SQLite as they were."""
_NULL = Raw(b"null")
_INTEGERS = range(-(2**63), 2**63)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def to_sql(kind: ColumnType, value: Raw) -> SqlValue:
    """The value as a column of this type holds it; what does not fit the type, as near as SQLite can."""
    if kind == "json":
        text = bytes(value).decode()
        return None if text == "null" else text
    given: Any = _decode(value)
    if given is None or isinstance(given, str | float):
        return given
    if isinstance(given, int):
        return given if given in _INTEGERS else float(given)
    return bytes(value).decode()


def fits(kind: ColumnType, value: Raw) -> bool:
    """Whether `from_sql` makes the same value again of what `to_sql` made of it; JSON null fits everywhere."""
    return memoryview(value)[0] in FITTING[kind]


def from_sql(kind: ColumnType, value: SqlValue) -> Raw:
    """The JSON of a column's value.

    Raises:
        UnicodeEncodeError: a text that is no Unicode.
    """
    if value is None:
        return _NULL
    if kind == "json":
        return Raw(str(value).encode())
    return Raw(_encode(bool(value) if kind == "boolean" else value))


def python_value(kind: ColumnType, value: SqlValue) -> Any:
    """A column's value as Python reads its JSON; JSON that has no canonical form (too deep, too large) stays text."""
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
