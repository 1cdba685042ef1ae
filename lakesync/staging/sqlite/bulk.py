"""Many rows in few statements.

A statement gives up the interpreter's lock while it runs and has to wait until it has it back; with `executemany` that
is once a row.
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
"""How many values a statement that looks for some asks for: few forms, which stay prepared."""
_FORMS = 64
"""Statements whose text is kept."""


def insert(sql: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert rows.

    Args:
        into: the table, or `table (columns)`.
        conflict: an `ON CONFLICT` clause.
    """
    if rows:
        insert_flat(sql, into, len(rows[0]), list(chain.from_iterable(rows)), conflict)


def insert_flat(sql: sqlite3.Connection, into: str, width: int, values: Sequence[Any], conflict: str = "") -> None:
    """Insert rows whose values stand one behind the other.

    Args:
        into: the table, or `table (columns)`.
        width: values of a row.
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
    """Rows of a query over some values of one column.

    Args:
        query: with `{}` where the values are listed, behind the parameters of `scope`.
    """
    for part in parts(wanted, _MOST):
        width = next(width for width in _WIDTHS if width >= len(part))
        filled = [*part, *[part[-1]] * (width - len(part))]
        yield from sql.execute(query.format(",".join("?" * width)), (*scope, *filled)).fetchall()


def parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """A sequence in pieces of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
