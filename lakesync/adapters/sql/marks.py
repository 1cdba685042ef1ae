"""How far followers are, and whose turn it is to write a table: one small table for both.

A row of it that is changed is locked to the end of the transaction, in every database that has transactions.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.adapters.base import Mark
from lakesync.adapters.sql.dialect import Column, Dialect
from lakesync.adapters.sql.executor import Connection
from lakesync.model.errors import IntegrityError

MARKS = "lakesync_marks"
_SCRATCH = "lakesync_incoming"
"""Made anew by each of its users."""
COLUMNS = (Column("name", "id"), Column("mark", "text"), Column("turn", "integer"))

_MAKE = (
    f"INSERT INTO {MARKS} (name, mark, turn) SELECT ?, ?, 0 FROM (SELECT 1 AS one) AS single"
    f" WHERE NOT EXISTS (SELECT 1 FROM {MARKS} WHERE name = ?)"
)


def read(connection: Connection, name: str) -> str | None:
    """A mark; None where it was never written."""
    found = connection.rows(f"SELECT mark FROM {MARKS} WHERE name = ?", [name])
    return found[0][0] if found else None


def read_prefix(connection: Connection, prefix: str) -> dict[str, str]:
    """The marks whose names begin so."""
    end = f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
    return dict(connection.rows(f"SELECT name, mark FROM {MARKS} WHERE name >= ? AND name < ?", [prefix, end]))


def put(connection: Connection, name: str, text: str) -> None:
    """Write a mark, whoever has moved it meanwhile, within the caller's transaction."""
    if not connection.execute(f"UPDATE {MARKS} SET mark = ?, turn = turn + 1 WHERE name = ?", [text, name]):
        connection.execute(_MAKE, [name, text, name])


def move(connection: Connection, mark: Mark) -> None:
    """Write a mark, within the caller's transaction.

    Raises:
        IntegrityError: it is not where the caller found it.
    """
    if mark.was is None:
        changed = connection.execute(_MAKE, [mark.name, mark.now, mark.name])
    else:
        changed = connection.execute(
            f"UPDATE {MARKS} SET mark = ?, turn = turn + 1 WHERE name = ? AND mark = ?", [mark.now, mark.name, mark.was]
        )
    if changed == 0:
        found = read(connection, mark.name)
        if found != mark.now:
            raise _moved(mark, found)


def check(connection: Connection, mark: Mark) -> None:
    """That a mark is where the caller found it, or where it is to go, for databases without transactions.

    Raises:
        IntegrityError: it is not.
    """
    found = read(connection, mark.name)
    if found not in (mark.was, mark.now):
        raise _moved(mark, found)


def make_locks(connection: Connection, dialect: Dialect, names: Sequence[str]) -> None:
    """Make the locks that are missing, for `take_locks`; several writers may do so at the same time."""
    import pyarrow as pa

    query = f"SELECT name FROM {MARKS} WHERE name IN ({', '.join('?' * len(names))})"
    present = {name for (name,) in connection.rows(query, list(names))}
    missing = [name for name in names if name not in present]
    if not missing:
        return
    for statement in dialect.scratch(_SCRATCH, COLUMNS, ("name",)):
        connection.execute(statement)
    turns = pa.array([0] * len(missing), pa.int64())
    connection.load(_SCRATCH, pa.table({"name": missing, "mark": [""] * len(missing), "turn": turns}))
    columns = [column.name for column in COLUMNS]
    connection.execute(dialect.merge(MARKS, _SCRATCH, columns, ("name",), ()))


def take_locks(connection: Connection, names: Sequence[str]) -> None:
    """Take locks, one after another, and keep them to the end of the transaction.

    Args:
        connection: with an open transaction.
        names: in an order that is the same for every writer, so that no two wait for each other.
    """
    for name in names:
        connection.execute(f"UPDATE {MARKS} SET turn = turn + 1 WHERE name = ?", [name])


def _moved(mark: Mark, found: str | None) -> IntegrityError:
    return IntegrityError(
        f"the mark {mark.name!r} is {found!r} and was thought to be {mark.was!r}: another run has moved it, "
        "so begin again where it is now"
    )
