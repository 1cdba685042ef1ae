"""Runs the app's queries, and returns their rows as dicts, for `LocalDB.query` and `lakesync.client.queries`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from lakesync.model.errors import ValidationError


def run_query(execute: Callable[[str, Any], sqlite3.Cursor], sql: str, params: Any) -> sqlite3.Cursor:
    """Run a query on a connection that is read-only at the moment.

    Args:
        execute: runs a statement on a connection with `query_only` on.
        sql: one statement that returns rows.
        params: values for its placeholders.

    Raises:
        ValidationError: the statement returns no rows, or writes.
    """
    try:
        cursor = execute(sql, params)
    except sqlite3.OperationalError as error:
        if "readonly" not in str(error):
            raise
        raise ValidationError(f"{sql!r} writes to the database: pass a query, and write with db.conn") from error
    if cursor.description is None:
        raise ValidationError(f"{sql!r} returns no rows: pass a query")
    return cursor


def rows_as_dicts(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    """Fetch all rows of a cursor as dicts by column. A name that is taken gets a number, as `row_id_1`."""
    names = distinct_names([column[0] for column in cursor.description])
    return [dict(zip(names, row, strict=True)) for row in cursor]


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return names of columns with a number after each that occurred before."""
    result: list[str] = []
    for name in names:
        free, number = name, 0
        while free in result or (number and free in names):
            number += 1
            free = f"{name}_{number}"
        result.append(free)
    return result
