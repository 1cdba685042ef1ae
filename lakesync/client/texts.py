"""Text of an app's that is no Unicode, which SQLite takes from a program of another encoding and nobody can read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lakesync.model.schema import ColumnType

MARK = "UTF-8"
"""What the error of a query that meets such text says."""


def first_bad(db: sqlite3.Connection, table: str, columns: Sequence[str]) -> tuple[str, str] | None:
    """The row and the column of the first of them, as far as the row's id can be read; None where there is none."""
    listed = ", ".join(["row_id", *(f'"{name}"' for name in columns)])
    query = f'SELECT {listed} FROM "{table}"'
    try:
        for _ in db.execute(query):
            pass
    except sqlite3.OperationalError as error:
        if MARK not in str(error):
            raise
    else:
        return None
    with _as_bytes(db):
        for row_id, *cells in db.execute(query):
            for name, cell in zip(["row_id", *columns], [row_id, *cells], strict=True):
                if _is_bad(cell):
                    return row_id.decode(errors="backslashreplace"), name
    return None


def mend(db: sqlite3.Connection, table: str, journal: tuple[str, str], types: Mapping[str, ColumnType]) -> None:
    r"""Spell bytes that are no Unicode as \xff, in rows of a table that were written to: else no change is ever sent.

    In JSON, which knows no such spelling, they become U+FFFD.

    Args:
        journal: the tables with these rows as they were and as they are; a column has `c_` before its name there.
    """
    touched, places = journal[1], (f'"{table}"', *journal)
    for place, prefix in zip(places, ("", "c_", "c_"), strict=True):
        listed = "".join(f', "{prefix}{name}"' for name in types)
        with _as_bytes(db):
            rows = db.execute(
                f"SELECT row_id{listed} FROM {place} WHERE row_id IN (SELECT row_id FROM {touched})"
            ).fetchall()
        for row_id, *cells in rows:
            for (name, kind), cell in zip(types.items(), cells, strict=True):
                if _is_bad(cell):
                    text = cell.decode(errors="replace" if kind == "json" else "backslashreplace")
                    where = "WHERE row_id = CAST(? AS TEXT)"
                    db.execute(f'UPDATE {place} SET "{prefix}{name}" = ? {where}', (text, row_id))
    with _as_bytes(db):
        ids = [row_id for (row_id,) in db.execute(f"SELECT row_id FROM {touched}").fetchall() if _is_bad(row_id)]
    for row_id in ids:
        for place in places:
            db.execute(
                f"UPDATE {place} SET row_id = ? WHERE row_id = CAST(? AS TEXT)",
                (row_id.decode(errors="backslashreplace"), row_id),
            )


@contextmanager
def _as_bytes(db: sqlite3.Connection) -> Iterator[None]:
    kept = db.text_factory
    db.text_factory = bytes
    try:
        yield
    finally:
        db.text_factory = kept


def _is_bad(cell: object) -> bool:
    if not isinstance(cell, bytes):
        return False
    try:
        cell.decode()
    except UnicodeDecodeError:
        return True
    return False
