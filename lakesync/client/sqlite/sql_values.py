r"""Values of synced tables in SQLite: conversion from and to JSON (the gateway's form) and Python, and checks.

The other modules of `sqlite` call the functions, and so does the load of a checkpoint. The triggers on the app's tables
use the `Constraint`s to reject values that the gateway would reject, when the app writes them; `table_validation` uses
them for existing rows.

Text that is not valid UTF-8 can be written by a program with another encoding, and Python's sqlite3 cannot read it.
`ChangeTracking`, which reads what the app has changed, calls `escape_invalid_utf8`: it replaces each invalid byte with
an escape such as `\xe9`, so that the change can be pushed. `table_validation` calls `find_invalid_utf8` for a table
that is to be synchronised.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from lakesync.model.delta import MAX_DEPTH, jcs_raw
from lakesync.model.errors import ValidationError
from lakesync.model.schema import ColumnType
from lakesync.model.validation import MAX_ID_CHARS

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
"""A value as sqlite3 binds and returns it."""

_ROUND_TRIP_FIRST_BYTES: dict[ColumnType, frozenset[int]] = {
    "string": frozenset(b'"n'),
    "number": frozenset(b"-0123456789n"),
    "boolean": frozenset(b"tfn"),
    "json": frozenset(b'"-0123456789tfn[{'),
    "null": frozenset(b"n"),
}
"""The possible first bytes of JSON values that a column of this type stores without loss; `n` begins null."""
_NULL = Raw(b"null")
UTF8_ERROR_MARK = "UTF-8"
"""Part of the message of the OperationalError that sqlite3 raises when it reads text that is not valid UTF-8."""
INT64 = range(-(2**63), 2**63)
"""The integers that SQLite stores as such."""
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Constraint(NamedTuple):
    """What a value must be, so that the gateway accepts it."""

    violation: str
    """SQL: true for a value that violates the constraint. `{0}` is replaced by the value, as `NEW."title"` or
    `t."title"`: never a bare name, which could be a column of `json_tree`."""
    expected: str
    """What the value must be, for messages."""


ROW_ID_CONSTRAINT = Constraint(
    f"(typeof({{0}}) <> 'text' OR length({{0}}) NOT BETWEEN 1 AND {MAX_ID_CHARS} OR instr({{0}}, char(0)))",
    f"text of 1 to {MAX_ID_CHARS} characters",
)

_MAX_DOUBLE = "1.7976931348623157e308"
"""The greatest double, as SQL."""
_NODES = "EXISTS (SELECT 1 FROM json_tree({0}) node"
"""The beginning of a condition on any node of a JSON text; `json_tree` returns its values at every depth."""

_BEYOND_DOUBLES = (
    f"(({{0}} GLOB '*[0-9][eE]*' OR {{0}} GLOB '*{'[0-9]' * 20}*') AND "  # cheap: no other number can be that large
    f"{_NODES} WHERE node.type IN ('integer', 'real') AND abs(node.value) > {_MAX_DOUBLE}))"
)
"""True for JSON with a number that is greater than any double."""
_SURROGATE_PREFIXES = ", ".join(f"(x'ED{second:02X}')" for second in range(0xA0, 0xC0))
"""The first two bytes of the invalid UTF-8 that SQLite makes of half a surrogate pair."""
_HALF_SURROGATE_PAIR = (
    "({0} GLOB '*\\u[dD][89a-fA-F]*' AND "
    f"{_NODES}, (VALUES {_SURROGATE_PREFIXES}) half "
    "WHERE instr(CAST(node.atom AS BLOB), half.column1) OR instr(CAST(node.key AS BLOB), half.column1)))"
)
"""True for JSON whose strings or keys contain half of a surrogate pair, which is no Unicode text."""
_TOO_DEEP = (
    # cheap: enough brackets, then a long enough path; only then the exact depth
    f"(length({{0}}) - length(replace(replace({{0}}, '[', ''), char(123), '')) > {MAX_DEPTH} AND "
    f"{_NODES} WHERE node.type IN ('array', 'object') AND length(node.fullkey) > {2 * MAX_DEPTH} AND "
    f"length(node.fullkey) - length(replace(replace(node.fullkey, '[', ''), '.', '')) >= {MAX_DEPTH}) AND "
    # materialised, or SQLite would parse the text again for each container
    "(WITH RECURSIVE container (id, parent) AS MATERIALIZED "
    "(SELECT id, parent FROM json_tree({0}) WHERE type IN ('array', 'object')), "
    "deep (id, depth) AS (SELECT id, 1 FROM container WHERE parent IS NULL UNION ALL "
    "SELECT container.id, depth + 1 FROM deep JOIN container ON container.parent = deep.id) "
    f"SELECT max(depth) FROM deep) > {MAX_DEPTH})"
)
"""True for JSON that is nested more than `MAX_DEPTH` deep."""
_NOT_CANONICAL = (
    f"CASE WHEN instr({{0}}, char(0)) OR {_BEYOND_DOUBLES} OR {_HALF_SURROGATE_PAIR} OR {_TOO_DEEP} THEN 1 ELSE 0 END"
)
"""True for JSON without a canonical form, which other clients would read differently; `jcs_raw` rejects it too.

Each part parses the JSON only if a cheap look at the text does not rule the problem out. SQLite stops early at an AND
or OR only in a condition, such as that of a WHEN: as a value it computes both sides.
"""

VALUE_CONSTRAINTS: dict[ColumnType, Constraint] = {
    "string": Constraint("typeof({0}) = 'blob'", "text"),
    "number": Constraint(
        f"typeof({{0}}) IN ('text', 'blob') OR {{0}} NOT BETWEEN -{_MAX_DOUBLE} AND {_MAX_DOUBLE}",
        "a finite number",
    ),
    "boolean": Constraint("{0} NOT IN (0, 1)", "0 or 1"),
    "json": Constraint(
        f"typeof({{0}}) = 'blob' OR CASE WHEN json_valid({{0}}) THEN {_NOT_CANONICAL} ELSE {{0}} IS NOT NULL END",
        f"JSON text of finite numbers and whole characters, at most {MAX_DEPTH} deep",
    ),
    "null": Constraint("{0} IS NOT NULL", "NULL"),
}
"""Column type → constraint of its values."""


def to_sql(kind: ColumnType, value: Raw) -> SqlValue:
    """Return a JSON value in the form in which a column stores it.

    A value of another type than the column is stored as well as SQLite can. The caller also stores the exact value, in
    the client's record of the row.

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
        return decoded if decoded in INT64 else float(decoded)
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


def find_invalid_utf8(db: sqlite3.Connection, table: str, columns: Sequence[str]) -> tuple[str, str] | None:
    """Find the first cell with text that is not valid UTF-8.

    Args:
        db: the app's database.
        table: a synced table.
        columns: the columns to read, besides `row_id`.

    Returns:
        The row id, with escapes for invalid bytes, and the column; None if all text is valid.
    """
    selected = ", ".join(["row_id", *(f'"{name}"' for name in columns)])
    query = f'SELECT {selected} FROM "{table}"'
    try:
        for _ in db.execute(query):
            pass
    except sqlite3.OperationalError as error:
        if UTF8_ERROR_MARK not in str(error):
            raise
    else:
        return None
    with _text_as_bytes(db):
        for row_id, *cells in db.execute(query):
            for name, cell in zip(["row_id", *columns], [row_id, *cells], strict=True):
                if _is_invalid(cell):
                    return row_id.decode(errors="backslashreplace"), name
    return None


def escape_invalid_utf8(
    db: sqlite3.Connection, table: str, journal: tuple[str, str], types: Mapping[str, ColumnType]
) -> None:
    r"""Replace invalid bytes in the changed rows of a table, and in the copies of these rows in the change journal.

    It does so in values and in row ids.

    Args:
        db: the app's database.
        table: a synced table.
        journal: the quoted names of the tables with these rows before and after the change; the names of their columns
            have the prefix `c_`.
        types: the types of the table's columns. JSON has no `\x` escape, so in it invalid bytes become U+FFFD.
    """
    after, tables = journal[1], (f'"{table}"', *journal)
    for stored_in, prefix in zip(tables, ("", "c_", "c_"), strict=True):
        selected = "".join(f', "{prefix}{name}"' for name in types)
        with _text_as_bytes(db):
            rows = db.execute(
                f"SELECT row_id{selected} FROM {stored_in} WHERE row_id IN (SELECT row_id FROM {after})"
            ).fetchall()
        for row_id, *cells in rows:
            for (name, kind), cell in zip(types.items(), cells, strict=True):
                if _is_invalid(cell):
                    text = cell.decode(errors="replace" if kind == "json" else "backslashreplace")
                    where = "WHERE row_id = CAST(? AS TEXT)"
                    db.execute(f'UPDATE {stored_in} SET "{prefix}{name}" = ? {where}', (text, row_id))
    with _text_as_bytes(db):
        ids = [row_id for (row_id,) in db.execute(f"SELECT row_id FROM {after}").fetchall() if _is_invalid(row_id)]
    for row_id in ids:
        for stored_in in tables:
            db.execute(
                f"UPDATE {stored_in} SET row_id = ? WHERE row_id = CAST(? AS TEXT)",
                (row_id.decode(errors="backslashreplace"), row_id),
            )


@contextmanager
def _text_as_bytes(db: sqlite3.Connection) -> Iterator[None]:
    """Let a connection return text as bytes, so that invalid text can be read."""
    text_factory = db.text_factory
    db.text_factory = bytes
    try:
        yield
    finally:
        db.text_factory = text_factory


def _is_invalid(cell: object) -> bool:
    """Return whether a cell that was read as bytes is not UTF-8; numbers and NULL are valid."""
    if not isinstance(cell, bytes):
        return False
    try:
        cell.decode()
    except UnicodeDecodeError:
        return True
    return False
