"""Inserts and selects many rows with few SQLite statements. The modules that write the files of a SQLite store call it.

Each statement releases the interpreter's lock, and then waits for it again while other threads run. `executemany` does
that once for each row. So these functions put many rows into one statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from lakesync.model.parts import parts

_MAX_ROWS = 256
"""The most rows or values in one statement."""
_WIDTHS = (1, 16, 64, 100, 128, _MAX_ROWS)
"""The possible numbers of values of a search: a few, so that the statements stay prepared."""
_MAX_STATEMENTS = 64
"""The most statement texts in the cache."""


def insert(sql: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert rows.

    Args:
        sql: an open connection.
        into: the table, or `table (columns)`.
        rows: the rows' values; all rows have the same number of values.
        conflict: an `ON CONFLICT` clause; empty for none.

    Raises:
        sqlite3.Error: the rows cannot be written; those of earlier statements are, in the open transaction.
    """
    if rows:
        insert_flat(sql, into, len(rows[0]), list(chain.from_iterable(rows)), conflict)


def insert_flat(sql: sqlite3.Connection, into: str, width: int, values: Sequence[Any], conflict: str = "") -> None:
    """Insert rows whose values are in one sequence, row after row.

    Args:
        sql: an open connection.
        into: the table, or `table (columns)`.
        width: the number of values of a row.
        values: the values of all rows.
        conflict: an `ON CONFLICT` clause; empty for none.
    """
    for part in parts(values, _MAX_ROWS * width):
        sql.execute(_insertion(into, width, len(part) // width, conflict), part)


def search(
    sql: sqlite3.Connection, query: str, scope: tuple[Any, ...], wanted: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query for many values of one column.

    Args:
        sql: an open connection.
        query: the statement, with `{}` where the placeholders of the values are inserted; no parameter comes after it.
        scope: the values of the parameters before that list.
        wanted: the values to look for.
    """
    for part in parts(wanted, _MAX_ROWS):
        width = next(width for width in _WIDTHS if width >= len(part))
        filled = [*part, *[part[-1]] * (width - len(part))]  # repeating a value finds no further rows
        yield from sql.execute(query.format(",".join("?" * width)), (*scope, *filled)).fetchall()


@lru_cache(_MAX_STATEMENTS)
def _insertion(into: str, width: int, rows: int, conflict: str) -> str:
    """Return the statement that inserts a number of rows; cached, because building a long text takes time."""
    placeholders = ",".join([f"({','.join('?' * width)})"] * rows)
    return f"INSERT INTO {into} VALUES {placeholders} {conflict}"
