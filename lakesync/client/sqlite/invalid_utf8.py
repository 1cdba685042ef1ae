r"""Text in SQLite that is not valid UTF-8: finding it in a table, and replacing it in changed rows.

A program with another encoding can write such text, and Python's sqlite3 cannot read it. `ChangeTracking`, which reads
what the app has changed, calls `escape_invalid_utf8`: it replaces each invalid byte with an escape such as `\xe9`, so
that the change can be pushed. `table_validation` calls `find_invalid_utf8` for a table that is to be synchronised.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lakesync.model.schema import ColumnType

UTF8_ERROR_MARK = "UTF-8"
"""Part of the message of the OperationalError that sqlite3 raises when it reads text that is not valid UTF-8."""


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

    Args:
        db: the app's database.
        table: a synced table.
        journal: the quoted names of the tables with these rows before and after the change; the names of their columns
            have the prefix `c_`.
        types: the types of the table's columns. JSON has no `\x` escape, so in it invalid bytes become U+FFFD.
    """
    after, tables = journal[1], (f'"{table}"', *journal)
    for each, prefix in zip(tables, ("", "c_", "c_"), strict=True):
        selected = "".join(f', "{prefix}{name}"' for name in types)
        with _text_as_bytes(db):
            rows = db.execute(
                f"SELECT row_id{selected} FROM {each} WHERE row_id IN (SELECT row_id FROM {after})"
            ).fetchall()
        for row_id, *cells in rows:
            for (name, kind), cell in zip(types.items(), cells, strict=True):
                if _is_invalid(cell):
                    text = cell.decode(errors="replace" if kind == "json" else "backslashreplace")
                    where = "WHERE row_id = CAST(? AS TEXT)"
                    db.execute(f'UPDATE {each} SET "{prefix}{name}" = ? {where}', (text, row_id))
    with _text_as_bytes(db):
        ids = [row_id for (row_id,) in db.execute(f"SELECT row_id FROM {after}").fetchall() if _is_invalid(row_id)]
    for row_id in ids:
        for each in tables:
            db.execute(
                f"UPDATE {each} SET row_id = ? WHERE row_id = CAST(? AS TEXT)",
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
