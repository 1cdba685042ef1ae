"""The table of dead letters in a SQL database: rewritten with each row that it is about, in the same transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lakesync.adapters.contents import RowId
from lakesync.adapters.dead_letters import DeadLetter
from lakesync.adapters.sql.dialect import Column, Dialect
from lakesync.adapters.sql.executor import Connection
from lakesync.adapters.sql.keys import KEYS, load_keys

LETTERS = "lakesync_dead_letters"
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


def replace_letters(
    connection: Connection, dialect: Dialect, table: str, rows: Collection[RowId], letters: Sequence[DeadLetter]
) -> None:
    """Replace what is said of rows, within the caller's transaction.

    Args:
        connection: with an open transaction.
        dialect: the database's.
        table: the synced table's name.
        rows: that were written.
        letters: what of them does not fit.
    """
    import pyarrow as pa

    if connection.rows(f"SELECT 1 FROM {LETTERS} WHERE table_name = ? LIMIT 1", [table]):
        load_keys(connection, dialect, rows)
        same = f"k.gateway = {LETTERS}.gateway AND k.row_id = {LETTERS}.row_id"
        connection.execute(
            f"DELETE FROM {LETTERS} WHERE table_name = ? AND EXISTS (SELECT 1 FROM {KEYS} k WHERE {same})", [table]
        )
    if not letters:
        return
    for statement in dialect.scratch(_SCRATCH, COLUMNS, KEY):
        connection.execute(statement)
    values = [(each.table, each.gateway, each.row_id, each.column, each.value, each.reason) for each in letters]
    names = [column.name for column in COLUMNS]
    connection.load(_SCRATCH, pa.table([pa.array(each, pa.string()) for each in zip(*values, strict=True)], names))
    connection.execute(dialect.merge(LETTERS, _SCRATCH, names, KEY, ("value", "reason")))


def read_letters(connection: Connection, limit: int) -> list[DeadLetter]:
    """Return the dead letters of every table, in order of the key."""
    names = "gateway, table_name, row_id, column_name, value, reason"
    found = connection.rows(f"SELECT {names} FROM {LETTERS} ORDER BY {', '.join(KEY)} LIMIT {limit}")
    return [DeadLetter(*row) for row in found]
