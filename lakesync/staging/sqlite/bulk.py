"""Inserts and selects many rows with few SQLite statements.

Each statement releases the interpreter's lock and waits for it again; `executemany` does that once per row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 256
_WIDTHS = (1, 16, 64, 100, 128, _MOST)
"""Numbers of parameters of a search: a few, so that the statements stay prepared."""
_FORMS = 64
"""Cached statement texts."""


def insert(sql: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert rows.

    Args:
        sql: the connection.
        into: the table, or `table (columns)`.
        rows: the rows, all of the same width.
        conflict: an `ON CONFLICT` clause.
    """
    if rows:
        insert_flat(sql, into, len(rows[0]), list(chain.from_iterable(rows)), conflict)


def insert_flat(sql: sqlite3.Connection, into: str, width: int, values: Sequence[Any], conflict: str = "") -> None:
    """Insert rows whose values are in one sequence, row after row.

    Args:
        sql: the connection.
        into: the table, or `table (columns)`.
        width: number of values per row.
        values: of all rows.
        conflict: an `ON CONFLICT` clause.
    """
    for part in parts(values, _MOST * width):
        sql.execute(_insertion(into, width, len(part) // width, conflict), part)


@lru_cache(_FORMS)
def _insertion(into: str, width: int, rows: int, conflict: str) -> str:
    every = ",".join([f"({','.join('?' * width)})"] * rows)
    return f"INSERT INTO {into} VALUES {every} {conflict}"


def search(
    sql: sqlite3.Connection, query: str, scope: tuple[Any, ...], wanted: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query for many values of one column.

    Args:
        sql: the connection.
        query: contains `{}` where the values are listed, after the parameters of `scope`.
        scope: the first parameters.
        wanted: the values.
    """
    for part in parts(wanted, _MOST):
        width = next(width for width in _WIDTHS if width >= len(part))
        filled = [*part, *[part[-1]] * (width - len(part))]
        yield from sql.execute(query.format(",".join("?" * width)), (*scope, *filled)).fetchall()


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield parts of a sequence with at most `size` items each."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
