"""The table of marks: one row for each follower, with how far it has read, and for each lock of a destination table.

A lock is a row that its owner updates: in every database with transactions, the row then stays locked until the
transaction ends. `SqlAdapter` calls this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.adapters.deltas import MarkUpdate
from lakesync.adapters.sql.dialect import Column, Dialect
from lakesync.adapters.sql.executor import Connection

MARKS_TABLE = "lakesync_marks"
_SCRATCH = "lakesync_incoming"
"""The scratch table that `delta_table` also uses; each use creates it again."""
COLUMNS = (Column("name", "id"), Column("mark", "text"), Column("turn", "integer"))
"""`turn` counts a row's updates, so that taking a lock changes the row."""

_INSERT_IF_ABSENT = (
    f"INSERT INTO {MARKS_TABLE} (name, mark, turn) SELECT ?, ?, 0 FROM (SELECT 1 AS one) AS single"
    f" WHERE NOT EXISTS (SELECT 1 FROM {MARKS_TABLE} WHERE name = ?)"
)


def read(connection: Connection, name: str) -> str | None:
    """Return the value of a mark; None if it was never written."""
    found = connection.query(f"SELECT mark FROM {MARKS_TABLE} WHERE name = ?", [name])
    return found[0][0] if found else None


def read_prefix(connection: Connection, prefix: str) -> dict[str, str]:
    """Return name → value of the marks whose names start with a prefix, which is not empty."""
    end = f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
    return dict(connection.query(f"SELECT name, mark FROM {MARKS_TABLE} WHERE name >= ? AND name < ?", [prefix, end]))


def put(connection: Connection, name: str, text: str) -> None:
    """Write a mark unconditionally, within the caller's transaction.

    Args:
        connection: with an open transaction.
        name: the mark's name.
        text: the new value.
    """
    if not connection.execute(f"UPDATE {MARKS_TABLE} SET mark = ?, turn = turn + 1 WHERE name = ?", [text, name]):
        connection.execute(_INSERT_IF_ABSENT, [name, text, name])


def move(connection: Connection, mark: MarkUpdate) -> None:
    """Update a mark, within the caller's transaction. Does nothing if it has the new value already.

    Args:
        connection: with an open transaction.
        mark: the update.

    Raises:
        IntegrityError: the mark has neither the expected nor the new value.
    """
    if mark.expected is None:
        changed = connection.execute(_INSERT_IF_ABSENT, [mark.name, mark.value, mark.name])
    else:
        changed = connection.execute(
            f"UPDATE {MARKS_TABLE} SET mark = ?, turn = turn + 1 WHERE name = ? AND mark = ?",
            [mark.value, mark.name, mark.expected],
        )
    if changed == 0:
        found = read(connection, mark.name)
        if found != mark.value:
            raise mark.moved_error(found)


def make_locks(connection: Connection, dialect: Dialect, names: Sequence[str]) -> None:
    """Create the rows of missing locks. Several writers may do so concurrently.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        names: the locks' names.
    """
    import pyarrow as pa

    query = f"SELECT name FROM {MARKS_TABLE} WHERE name IN ({', '.join('?' * len(names))})"
    present = {name for (name,) in connection.query(query, list(names))}
    missing = [name for name in names if name not in present]
    if not missing:
        return
    for statement in dialect.create_scratch(_SCRATCH, COLUMNS, ("name",)):
        connection.execute(statement)
    turns = pa.array([0] * len(missing), pa.int64())
    connection.load_scratch(_SCRATCH, pa.table({"name": missing, "mark": [""] * len(missing), "turn": turns}))
    columns = [column.name for column in COLUMNS]
    connection.execute(dialect.merge_statement(MARKS_TABLE, _SCRATCH, columns, ("name",), ()))


def take_locks(connection: Connection, names: Sequence[str]) -> None:
    """Take locks one after another and hold them until the end of the transaction.

    Args:
        connection: with an open transaction.
        names: in an order that all writers share, so that they cannot deadlock.
    """
    for name in names:
        connection.execute(f"UPDATE {MARKS_TABLE} SET turn = turn + 1 WHERE name = ?", [name])
