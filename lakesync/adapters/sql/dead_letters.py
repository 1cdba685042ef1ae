"""Stores dead letters and suspended tables of a SQL destination, in the transaction that writes the rows.

A dead letter is a value that the database rejected; a suspended table is a destination table that could not be written
(`lakesync.adapters.dead_letters`). A suspended table is stored as a mark (a named text in the destination's table of
marks) with the name `FOLLOWER!TABLE`. The mark's value is a `SuspendedTable` in JSON, or empty if the table is not
suspended any longer. `SqlAdapter` and `row_tables` call it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from lakesync.adapters.dead_letters import DeadLetter, SuspendedTable
from lakesync.adapters.row_content import RowId
from lakesync.adapters.sql import marks
from lakesync.adapters.sql.dialect import Column, Dialect
from lakesync.adapters.sql.executor import Connection
from lakesync.model.hlc import wall_clock

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

    for statement in dialect.create_scratch(ROW_KEYS_TABLE, _KEY_COLUMNS, ("gateway", "row_id")):
        connection.execute(statement)
    columns = [pa.array([row[index] for row in rows], pa.string()) for index in range(2)]
    connection.load_scratch(ROW_KEYS_TABLE, pa.table(columns, ["gateway", "row_id"]))


DEAD_LETTERS_TABLE = "lakesync_dead_letters"
COLUMNS = (
    Column("table_name", "name"),
    Column("gateway", "name"),
    Column("row_id", "id"),
    Column("column_name", "name"),
    Column("value", "text"),
    Column("reason", "text"),
)
KEY = ("table_name", "gateway", "row_id", "column_name")
_SCRATCH = "lakesync_letters"


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
    for statement in dialect.create_scratch(_SCRATCH, COLUMNS, KEY):
        connection.execute(statement)
    values = [(each.table, each.gateway, each.row_id, each.column, each.value, each.reason) for each in letters]
    names = [column.name for column in COLUMNS]
    connection.load_scratch(
        _SCRATCH, pa.table([pa.array(each, pa.string()) for each in zip(*values, strict=True)], names)
    )
    connection.execute(dialect.merge_statement(DEAD_LETTERS_TABLE, _SCRATCH, names, KEY, ("value", "reason")))


def read_dead_letters(connection: Connection, limit: int) -> list[DeadLetter]:
    """Return at most `limit` dead letters of all tables, ordered by table, gateway, row and column."""
    names = "gateway, table_name, row_id, column_name, value, reason"
    found = connection.query(f"SELECT {names} FROM {DEAD_LETTERS_TABLE} ORDER BY {', '.join(KEY)} LIMIT {limit}")
    return [DeadLetter(*row) for row in found]


FIRST_PAUSE_MS = 60_000
"""Pause before the second attempt to write a suspended table; doubled for each further one."""
LONGEST_PAUSE_MS = 3_600_000
_MAX_REASON_CHARS = 2_000


def follower_of(mark_name: str) -> str:
    """Return the follower that a mark belongs to: `F` both for its own mark `F` and for `F#2`, part 2 of its load."""
    return mark_name.partition("#")[0]


def suspended_tables(connection: Connection, follower: str) -> dict[str, SuspendedTable]:
    """Return the follower's suspended tables by name.

    Args:
        connection: an open connection.
        follower: the follower's name.
    """
    found = marks.read_prefix(connection, f"{follower}!")
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
    name = _mark_name(follower, table)
    text = marks.read(connection, name)
    failures = 1 + (msgspec.json.decode(text, type=SuspendedTable).failures if text else 0)
    pause_ms = min(FIRST_PAUSE_MS * 2 ** min(failures - 1, 10), LONGEST_PAUSE_MS)
    suspended = SuspendedTable(table, reason[:_MAX_REASON_CHARS], failures, wall_clock() + pause_ms)
    marks.put(connection, name, msgspec.json.encode(suspended).decode())
    return suspended


def retry_table(connection: Connection, follower: str, table: str) -> None:
    """Suspend a table with a retry that is due now, so that the follower's next run rewrites its rows.

    Args:
        connection: an open connection.
        follower: the follower's name.
        table: the synced table.
    """
    name = _mark_name(follower, table)
    text = marks.read(connection, name)
    suspended = (
        msgspec.json.decode(text, type=SuspendedTable) if text else SuspendedTable(table, "a retry was requested", 0, 0)
    )
    due_now = msgspec.structs.replace(suspended, retry_ms=0)
    marks.put(connection, name, msgspec.json.encode(due_now).decode())


def resume_table(connection: Connection, follower: str, table: str) -> None:
    """End a table's suspension. Its mark remains, with an empty value.

    Args:
        connection: with an open transaction.
        follower: the follower's name.
        table: the synced table.
    """
    name = _mark_name(follower, table)
    text = marks.read(connection, name)
    if text:
        marks.put(connection, name, "")


def _mark_name(follower: str, table: str) -> str:
    """Return the name under which a follower's suspended table is stored among the marks."""
    return f"{follower}!{table}"
