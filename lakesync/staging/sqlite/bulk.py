"""Many rows in few statements.

A statement gives up the interpreter's lock while it runs and has to wait until it has it back; with `executemany` that
is once a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

_MOST = 64


def insert(sql: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert rows.

    Args:
        into: the table, or `table (columns)`.
        conflict: an `ON CONFLICT` clause.
    """
    start = 0
    while start < len(rows):
        size = _MOST
        while size > len(rows) - start:
            size //= 2
        part = rows[start : start + size]
        one = f"({','.join('?' * len(part[0]))})"
        sql.execute(f"INSERT INTO {into} VALUES {','.join([one] * size)} {conflict}", tuple(chain.from_iterable(part)))
        start += size
