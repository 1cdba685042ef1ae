"""Many rows at once: settled rows, which have no edits, written with few statements.

What does not fit goes the way of `lakesync.client.core.pages`, row by row, with the same outcome.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from lakesync.client.cells import Types
from lakesync.client.groups import Group
from lakesync.client.stamps import Record, known_of

_SIZES = (200, 20, 1)
"""Rows of a statement: of many the first, as many as are left then by the next, where SQLite takes the variables."""


def put(
    db: sqlite3.Connection,
    group: Group,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
    types: Types,
    *,
    instead: bool,
) -> None:
    """Write whole rows, and what is known of them from now on.

    Args:
        instead: of rows that are there, of which nothing stays as it was; otherwise nothing is known of them.
    """
    head, marks = _row(group)
    cells = [group.row_ids, *columns]
    if instead:
        write_rows(db, head, marks, cells, _instead(group, types))
    else:
        try:
            write_rows(db, head, marks, cells)
        except sqlite3.IntegrityError:  # one of them is there after all: somebody wrote it past the triggers
            write_rows(db, head, marks, cells, _instead(group, types))
    write_rows(db, *_known("INSERT OR REPLACE" if instead else "INSERT", group, generation), [group.row_ids, records])


def update(
    db: sqlite3.Connection,
    group: Group,
    columns: Sequence[Sequence[Any]],
    records: Sequence[Record],
    generation: int,
) -> None:
    """Change columns of rows that are there, and what is known of them."""
    given = ", ".join(f"c{place}" for place in range(len(columns)))
    changes = ", ".join(f'"{name}" = _lakesync_said.c{place}' for place, name in enumerate(group.names))
    head = f"WITH _lakesync_said (id, {given}) AS ("
    tail = f') UPDATE "{group.table}" SET {changes} FROM _lakesync_said WHERE row_id = _lakesync_said.id'
    write_rows(db, head, f"(?{', ?' * len(columns)})", [group.row_ids, *columns], tail)
    write_rows(db, *_known("INSERT OR REPLACE", group, generation), [group.row_ids, records])


def _row(group: Group) -> tuple[str, str]:
    names = "".join(f', "{name}"' for name in group.names)
    return f'INSERT INTO "{group.table}" (row_id{names})', f"(?{', ?' * len(group.names)})"


def _instead(group: Group, types: Types) -> str:
    """What becomes of a row that is there: it has the new values, and none in the schema's other columns."""
    values = [f'"{name}" = ' + (f'excluded."{name}"' if name in group.names else "NULL") for name in types[group.table]]
    return f" ON CONFLICT (row_id) DO UPDATE SET {', '.join(values)}"


def _known(verb: str, group: Group, generation: int) -> tuple[str, str]:
    return f"{verb} INTO {known_of(group.table)} (row_id, generation, stamps)", f"(?, {generation}, ?)"


def write_rows(db: sqlite3.Connection, head: str, marks: str, columns: Sequence[Sequence[Any]], tail: str = "") -> None:
    """Write rows, many with a statement: to begin and end one takes as long as a row of it."""
    width = len(columns)
    cells = list(chain.from_iterable(zip(*columns, strict=True)))
    most = db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
    done = 0
    for size in _SIZES:
        step = max(1, min(size, most)) * width
        end = len(cells) - (len(cells) - done) % step
        if end > done:
            statement = f"{head} VALUES {', '.join([marks] * (step // width))}{tail}"
            db.executemany(statement, [cells[place : place + step] for place in range(done, end, step)])
            done = end
