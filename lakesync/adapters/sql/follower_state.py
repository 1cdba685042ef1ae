"""What a SQL destination stores about its followers: marks, suspended tables, dead letters, and locks of its tables.

A *follower* copies deltas (changes of rows) from the lake to the destination; its *mark*, a text, says how far it has
read. A *destination table* has the current rows of a synced table; a row is identified by its gateway (one app's stream
of changes) and row id. A *dead letter* is a value that the database rejected, and a *suspended table* a destination
table that could not be written (`lakesync.adapters.base`). All are written in the transaction that writes the rows.
`SqlAdapter` calls this module, and `row_tables` calls it for the dead letters of the rows that it writes.

Three kinds of rows share the table of marks:

- a follower's mark, under the follower's name;
- a suspended table, under `FOLLOWER!TABLE`: a `SuspendedTable` in JSON, or empty once the table is not suspended;
- a lock of some rows of a destination table, so that they have one writer at a time. The writer updates the lock's row,
  which in every database with transactions stays locked until the transaction ends. Its mark is the synced table whose
  rows the destination table has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from lakesync.adapters.base import LONGEST_PAUSE_MS, DeadLetter, SuspendedTable
from lakesync.adapters.deltas import MarkUpdate, RowId, TableSelection
from lakesync.adapters.sql.backend import Column, Connection, Dialect, load_scratch_table
from lakesync.model.backoff import doubled_wait
from lakesync.model.errors import SchemaError
from lakesync.model.hlc import wall_clock

MARKS_TABLE = "lakesync_marks"
_MARKS_SCRATCH = "lakesync_incoming"
"""The scratch (temporary) table that `delta_table` also uses; each use creates it again."""
MARK_COLUMNS = (Column("name", "id"), Column("mark", "text"), Column("turn", "integer"))
"""`turn` counts a row's updates, so that taking a lock changes the row."""

_INSERT_IF_ABSENT = (
    f"INSERT INTO {MARKS_TABLE} (name, mark, turn) SELECT ?, ?, 0 FROM (SELECT 1 AS one) AS single"
    f" WHERE NOT EXISTS (SELECT 1 FROM {MARKS_TABLE} WHERE name = ?)"
)
"""Inserts a mark unless one has its name. Some databases allow WHERE only after a FROM, here of one row."""


def read_mark(connection: Connection, name: str) -> str | None:
    """Return the value of a mark; None if it was never written."""
    found = connection.query(f"SELECT mark FROM {MARKS_TABLE} WHERE name = ?", [name])
    return found[0][0] if found else None


def read_marks(connection: Connection, prefix: str) -> dict[str, str]:
    """Return name → value of the marks whose names start with a prefix, which is not empty."""
    end = f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"  # the least text that is greater than all with the prefix
    return dict(connection.query(f"SELECT name, mark FROM {MARKS_TABLE} WHERE name >= ? AND name < ?", [prefix, end]))


def write_mark(connection: Connection, name: str, text: str) -> None:
    """Write a mark unconditionally, within the caller's transaction.

    Args:
        connection: with an open transaction.
        name: the mark's name.
        text: the new value.
    """
    if not connection.execute(f"UPDATE {MARKS_TABLE} SET mark = ?, turn = turn + 1 WHERE name = ?", [text, name]):
        connection.execute(_INSERT_IF_ABSENT, [name, text, name])


def move_mark(connection: Connection, mark: MarkUpdate) -> None:
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
        found = read_mark(connection, mark.name)
        if found != mark.value:
            raise mark.moved_error(found)


def revoke_marks(connection: Connection) -> None:
    """Change the text of every follower's mark, within the caller's transaction; JSON ignores the blank.

    A task of a killed run may go on, with deltas that it read before an erasure. It can no longer move its mark, so it
    cannot write them. The marks of locks are no JSON, and those of suspended tables are not compared.
    """
    connection.execute(
        f"UPDATE {MARKS_TABLE} SET mark = ' ' || mark, turn = turn + 1 WHERE mark LIKE '%{{%' AND name NOT LIKE '%!%'"
    )


def make_locks(connection: Connection, dialect: Dialect, names: Sequence[str], owner: str, *, is_new: bool) -> None:
    """Create the rows of a destination table's missing locks, and check whose rows the table has.

    Several writers may do so concurrently. The mark of a lock is the synced table whose rows the destination table has.
    It is empty for a table of earlier versions, which then gets it.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        names: the locks' names, in the order in which they are taken.
        owner: the synced table whose rows are written.
        is_new: whether the destination table is created next, so that it has no rows of another synced table.

    Raises:
        SchemaError: the destination table has the rows of another synced table.
    """
    import pyarrow as pa

    query = f"SELECT name, mark FROM {MARKS_TABLE} WHERE name IN ({', '.join('?' * len(names))})"
    owners = dict(connection.query(query, list(names)))
    others = {each for each in owners.values() if each not in ("", owner)}
    if others and not is_new:
        raise SchemaError(
            f"the rows of the synced table {owner!r} cannot be written to a destination table with the rows of "
            f"{max(others)!r}: set another sourceTable in a schema, or drop the destination table if those are retired"
        )
    for name in names:
        if owners.get(name, owner) != owner:
            connection.execute(f"UPDATE {MARKS_TABLE} SET mark = ? WHERE name = ?", [owner, name])
    missing = [name for name in names if name not in owners]
    if not missing:
        return
    rows = {"name": missing, "mark": [owner] * len(missing), "turn": pa.array([0] * len(missing), pa.int64())}
    load_scratch_table(connection, dialect, _MARKS_SCRATCH, MARK_COLUMNS, ("name",), pa.table(rows))
    columns = [column.name for column in MARK_COLUMNS]
    connection.execute(dialect.merge_statement(MARKS_TABLE, _MARKS_SCRATCH, columns, ("name",), ()))


def take_locks(connection: Connection, names: Sequence[str]) -> None:
    """Take locks one after another and hold them until the end of the transaction.

    Args:
        connection: with an open transaction.
        names: in an order that all writers share, so that they cannot deadlock.
    """
    for name in names:
        connection.execute(f"UPDATE {MARKS_TABLE} SET turn = turn + 1 WHERE name = ?", [name])


ROW_KEYS_TABLE = "lakesync_keys"
"""A scratch table of row ids, so that one statement can delete many rows."""
_KEY_COLUMNS = (Column("gateway", "name"), Column("row_id", "id"))


def load_row_keys(connection: Connection, dialect: Dialect, rows: Collection[RowId]) -> None:
    """Load row ids into the scratch table `ROW_KEYS_TABLE` with the columns `gateway` and `row_id`.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        rows: `(gateway, row id)` of each row.
    """
    import pyarrow as pa

    names = ("gateway", "row_id")
    columns = [pa.array([row[index] for row in rows], pa.string()) for index in range(2)]
    load_scratch_table(connection, dialect, ROW_KEYS_TABLE, _KEY_COLUMNS, names, pa.table(columns, names))


DEAD_LETTERS_TABLE = "lakesync_dead_letters"
DEAD_LETTER_COLUMNS = (
    Column("table_name", "name"),
    Column("gateway", "name"),
    Column("row_id", "id"),
    Column("column_name", "name"),
    Column("value", "text"),
    Column("reason", "text"),
)
"""The columns of the table of dead letters."""
DEAD_LETTER_KEY = ("table_name", "gateway", "row_id", "column_name")
"""Its primary key: one dead letter per value."""
_LETTERS_SCRATCH = "lakesync_letters"
"""The scratch table of new dead letters."""


def replace_dead_letters(
    connection: Connection, dialect: Dialect, table: str, rows: Collection[RowId], letters: Sequence[DeadLetter]
) -> None:
    """Replace the dead letters of rows, within the caller's transaction.

    Args:
        connection: with an open transaction.
        dialect: the database's dialect.
        table: the synced table's name.
        rows: the rows that were written.
        letters: the dead letters of these rows, which replace all earlier ones.
    """
    import pyarrow as pa

    if connection.query(f"SELECT 1 FROM {DEAD_LETTERS_TABLE} WHERE table_name = ? LIMIT 1", [table]):
        load_row_keys(connection, dialect, rows)
        is_same = f"k.gateway = {DEAD_LETTERS_TABLE}.gateway AND k.row_id = {DEAD_LETTERS_TABLE}.row_id"
        connection.execute(
            f"DELETE FROM {DEAD_LETTERS_TABLE} WHERE table_name = ?"
            f" AND EXISTS (SELECT 1 FROM {ROW_KEYS_TABLE} k WHERE {is_same})",
            [table],
        )
    if not letters:
        return
    values = [(each.table, each.gateway, each.row_id, each.column, each.value, each.reason) for each in letters]
    names = [column.name for column in DEAD_LETTER_COLUMNS]
    rejected = pa.table([pa.array(each, pa.string()) for each in zip(*values, strict=True)], names)
    load_scratch_table(connection, dialect, _LETTERS_SCRATCH, DEAD_LETTER_COLUMNS, DEAD_LETTER_KEY, rejected)
    connection.execute(
        dialect.merge_statement(DEAD_LETTERS_TABLE, _LETTERS_SCRATCH, names, DEAD_LETTER_KEY, ("value", "reason"))
    )


def read_dead_letters(connection: Connection, limit: int, selection: TableSelection) -> list[DeadLetter]:
    """Return the first dead letters of some tables and gateways, ordered by table, gateway, row and column.

    Args:
        connection: an open connection.
        limit: the most dead letters to return.
        selection: the tables and gateways.
    """
    conditions, values = ["1 = 1"], list[str]()
    for column, names, negated in (
        ("table_name", selection.tables, ""),
        ("table_name", selection.without, "NOT "),
        ("gateway", selection.gateways, ""),
    ):
        if names:
            conditions.append(f"{column} {negated}IN ({', '.join('?' * len(names))})")
            values += names
    selected = f"SELECT gateway, table_name, row_id, column_name, value, reason FROM {DEAD_LETTERS_TABLE}"
    order = ", ".join(DEAD_LETTER_KEY)
    found = connection.query(f"{selected} WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT {limit}", values)
    return [DeadLetter(*row) for row in found]


FIRST_PAUSE_MS = 60_000
"""Pause before the first retry of a suspended table; doubled for each further one, up to `LONGEST_PAUSE_MS`."""
_MAX_REASON_CHARS = 2_000
"""Characters of a reason that are stored."""


def follower_of(mark_name: str) -> str:
    """Return the follower that a mark belongs to: `F` for its own mark `F`, and for the mark `F#2`.

    `F#2` is the mark of part 2 of a large backlog, which several tasks copy in parts.
    """
    return mark_name.partition("#")[0]


def suspended_tables(connection: Connection, follower: str) -> dict[str, SuspendedTable]:
    """Return the follower's suspended tables by name.

    Args:
        connection: an open connection.
        follower: the follower's name.
    """
    found = read_marks(connection, f"{follower}!")
    suspended = (msgspec.json.decode(text, type=SuspendedTable) for text in found.values() if text)
    return {each.table: each for each in suspended}


def suspend_table(connection: Connection, follower: str, table: str, reason: str) -> SuspendedTable:
    """Suspend a table, within the caller's transaction. Each further failure doubles the pause.

    Args:
        connection: with an open transaction.
        follower: the follower's name.
        table: the synced table.
        reason: why the table cannot be written.
    """
    name = _suspension_name(follower, table)
    text = read_mark(connection, name)
    failures = 1 + (msgspec.json.decode(text, type=SuspendedTable).failures if text else 0)
    pause_ms = round(doubled_wait(FIRST_PAUSE_MS, LONGEST_PAUSE_MS, failures - 1))
    suspended = SuspendedTable(table, reason[:_MAX_REASON_CHARS], failures, wall_clock() + pause_ms)
    write_mark(connection, name, msgspec.json.encode(suspended).decode())
    return suspended


def retry_table(connection: Connection, follower: str, table: str) -> None:
    """Suspend a table with a retry that is due now, so that the follower's next run rewrites its rows.

    A suspended table keeps its number of failures.

    Args:
        connection: with an open transaction.
        follower: the follower's name.
        table: the synced table.
    """
    name = _suspension_name(follower, table)
    text = read_mark(connection, name)
    suspended = (
        msgspec.json.decode(text, type=SuspendedTable) if text else SuspendedTable(table, "a retry was requested", 0, 0)
    )
    due_now = msgspec.structs.replace(suspended, retry_ms=0)
    write_mark(connection, name, msgspec.json.encode(due_now).decode())


def resume_table(connection: Connection, follower: str, table: str) -> None:
    """End a table's suspension. Its mark remains, with an empty value.

    Args:
        connection: with an open transaction.
        follower: the follower's name.
        table: the synced table.
    """
    name = _suspension_name(follower, table)
    text = read_mark(connection, name)
    if text:
        write_mark(connection, name, "")


def _suspension_name(follower: str, table: str) -> str:
    """Return the name under which a follower's suspended table is stored among the marks."""
    return f"{follower}!{table}"
