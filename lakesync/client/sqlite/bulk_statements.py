"""SQL statements that write many rows and their records at once. `bulk_changes` and `staging_table` call them.

A record holds the stamps of a row's columns: which delta wrote them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from lakesync.client.sqlite.column_values import TableTypes
from lakesync.client.sqlite.row_groups import RowGroup
from lakesync.client.sqlite.stamps import Record, known_table

_ROWS_PER_STATEMENT = (200, 20, 1)
"""The first size is used as often as possible, then the next for the remaining rows; SQLite limits the parameters."""


def write_rows(
    db: sqlite3.Connection,
    group: RowGroup,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
    types: TableTypes,
    *,
    replace: bool,
) -> None:
    """Insert or replace whole rows and their records.

    Args:
        db: the app's database.
        group: the rows.
        columns: the values of each column of the group, as SQLite binds them.
        records: the rows' records.
        generation: the rows' generation.
        types: the column types of all tables.
        replace: whether the rows exist and all their values are replaced; otherwise they are new.
    """
    head, marks = _insert_row(group)
    cells = [group.row_ids, *columns]
    if replace:
        execute_for_rows(db, head, marks, cells, _on_conflict_replace(group, types))
    else:
        try:
            execute_for_rows(db, head, marks, cells)
        except sqlite3.IntegrityError:  # a row exists although it is not known: it was written without the triggers
            execute_for_rows(db, head, marks, cells, _on_conflict_replace(group, types))
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    execute_for_rows(db, *_insert_record(verb, group, generation), [group.row_ids, records])


def update_rows(
    db: sqlite3.Connection,
    group: RowGroup,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
) -> None:
    """Update columns of known rows, and their records.

    Args:
        db: the app's database.
        group: the rows.
        columns: the new values of each column of the group, as SQLite binds them.
        records: the rows' records after the update.
        generation: the rows' generation.
    """
    names = ", ".join(f"c{index}" for index in range(len(columns)))
    changes = ", ".join(f'"{name}" = _lakesync_new.c{index}' for index, name in enumerate(group.names))
    head = f"WITH _lakesync_new (id, {names}) AS ("
    tail = f') UPDATE "{group.table}" SET {changes} FROM _lakesync_new WHERE row_id = _lakesync_new.id'
    execute_for_rows(db, head, f"(?{', ?' * len(columns)})", [group.row_ids, *columns], tail)
    execute_for_rows(db, *_insert_record("INSERT OR REPLACE", group, generation), [group.row_ids, records])


def execute_for_rows(
    db: sqlite3.Connection, head: str, marks: str, columns: Sequence[Sequence[Any]], tail: str = ""
) -> None:
    """Execute a statement with a VALUES list for many rows at once, because starting a statement costs like a row.

    Args:
        db: the database.
        head: SQL before VALUES.
        marks: the placeholders of one row of the list, such as `(?, ?)`.
        columns: the parameters by column, each with a value for every row.
        tail: SQL after the list.
    """
    width = len(columns)
    cells = list(chain.from_iterable(zip(*columns, strict=True)))
    limit = db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
    done = 0
    for size in _ROWS_PER_STATEMENT:
        step = max(1, min(size, limit)) * width
        end = len(cells) - (len(cells) - done) % step
        if end > done:
            statement = f"{head} VALUES {', '.join([marks] * (step // width))}{tail}"
            db.executemany(statement, [cells[start : start + step] for start in range(done, end, step)])
            done = end


def _insert_row(group: RowGroup) -> tuple[str, str]:
    """Return the head and the placeholders of the statement that inserts a row of the group."""
    names = "".join(f', "{name}"' for name in group.names)
    return f'INSERT INTO "{group.table}" (row_id{names})', f"(?{', ?' * len(group.names)})"


def _on_conflict_replace(group: RowGroup, types: TableTypes) -> str:
    """Return the clause that replaces an existing row; columns of the schema that the row lacks become NULL."""
    values = [f'"{name}" = ' + (f'excluded."{name}"' if name in group.names else "NULL") for name in types[group.table]]
    return f" ON CONFLICT (row_id) DO UPDATE SET {', '.join(values)}"


def _insert_record(verb: str, group: RowGroup, generation: int) -> tuple[str, str]:
    """Return the head and the placeholders of the statement that inserts a row's record."""
    return f"{verb} INTO {known_table(group.table)} (row_id, generation, stamps)", f"(?, {generation}, ?)"
