"""Many rows in few statements.

A statement gives up the interpreter's lock while it runs and has to wait until it has it back; with `executemany` that
is once a row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

_MOST = 256


def insert(sql: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert rows.

    Args:
        into: the table, or `table (columns)`.
        conflict: an `ON CONFLICT` clause.
    """
    for start in range(0, len(rows), _MOST):
        part = rows[start : start + _MOST]
        one = f"({','.join('?' * len(part[0]))})"
        every = ",".join([one] * len(part))
        sql.execute(f"INSERT INTO {into} VALUES {every} {conflict}", tuple(chain.from_iterable(part)))
