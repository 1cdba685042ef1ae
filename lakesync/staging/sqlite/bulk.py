"""Many rows in few statements.

A statement gives up the interpreter's lock while it runs and has to wait until it has it back; with `executemany` that
is once a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 256
_WIDTHS = (1, 16, 64, 128, _MOST)
"""How many values a statement that looks for some asks for: few forms, which stay prepared."""


def insert(sql: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert rows.

    Args:
        into: the table, or `table (columns)`.
        conflict: an `ON CONFLICT` clause.
    """
    for part in parts(rows, _MOST):
        one = f"({','.join('?' * len(part[0]))})"
        every = ",".join([one] * len(part))
        sql.execute(f"INSERT INTO {into} VALUES {every} {conflict}", tuple(chain.from_iterable(part)))


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
