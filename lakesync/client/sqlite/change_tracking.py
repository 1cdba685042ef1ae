"""Change tracking: triggers in the app's file journal every write to a synced table.

A client is an app's process that synchronises its SQLite file with a *gateway*, the app's stream of changes on the
server. `SqliteClientStore` creates the triggers, whose SQL is in `triggers`. `Replica` reads the journal and makes
*edits* of its rows, which are changes that the client pushes to the gateway. For each row written since the journal was
last read, the triggers keep the row before its first write (`_lakesync_before_TABLE`; `there`: whether the row existed)
and as it is now (`_lakesync_after_TABLE`; `here`: whether the row exists, `at`: when it was last written). In both,
`c_NAME` has the value of the column NAME. The triggers commit or roll back with the app's own transaction.

If the app renames a table, SQLite moves its triggers with it, and they must journal nothing. So each one looks up in
`sqlite_master` (SQLite's catalogue) on which table one of them, the *anchor*, is. The anchor's rowid there is part of
their SQL, which makes the look-up fast; if VACUUM has changed the rowid, they look the anchor up by name.

Only the journal says what the app changed. A row that is missing from the table was not necessarily deleted: the table
may have been dropped, recreated or renamed.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple, get_args

from lakesync.client.core.store import LocalChange
from lakesync.client.sqlite.sql_values import UTF8_ERROR_MARK, SqlValue, escape_invalid_utf8, python_value
from lakesync.client.sqlite.stamps import known_table
from lakesync.client.sqlite.triggers import (
    ANCHOR,
    NOW_MS,
    TRIGGERS,
    Operation,
    after_table,
    before_table,
    trigger_name,
    trigger_statements,
)
from lakesync.model.schema import ColumnType, TableSchema
from lakesync.model.types import RowKey

JOURNAL_COLUMNS = 4
"""Columns that reading the journal selects besides those of the row: row id, `at`, `there` and `here`."""

_QUIET = "CREATE TABLE IF NOT EXISTS _lakesync_quiet (one INTEGER PRIMARY KEY)"
"""While this table has a row, no trigger journals: LakeSync itself is writing."""
_TABLES = """CREATE TABLE IF NOT EXISTS _lakesync_tables (
    tbl TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, schema BLOB NOT NULL,
    changes INTEGER NOT NULL DEFAULT 0, triggers TEXT, remade INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"""
"""`changes` counts writes, for watches (the app's live queries). `triggers` is the digest of the triggers as they were
created. `remade` is set in a *recreated* table, one that the app has dropped, recreated or renamed, until the client
has requested its rows from the gateway again."""
_ADDED_COLUMNS = {"triggers": "TEXT", "remade": "INTEGER NOT NULL DEFAULT 0"}
"""Columns of `_lakesync_tables` that files of earlier versions lack."""
_EARLIER_TRIGGERS = {"insert", "inserted", "move", "updated", "deleted"}
"""The triggers of earlier versions, which stored no digest."""


class _Trigger(NamedTuple):
    """A trigger in the file."""

    rowid: int
    """Its rowid in `sqlite_master`."""
    on_table: str
    """The table that it is on."""
    sql: str
    """The statement that creates it."""


class ChangeTracking:
    """The triggers on an app's tables, and their journal."""

    def __init__(self, db: sqlite3.Connection, schemas: Mapping[str, TableSchema]) -> None:
        """Create an accessor of the journal; no table or trigger is created.

        Args:
            db: the app's database.
            schemas: the schemas of the synced tables by name; `SqliteClientStore` adds to it.
        """
        self._db = db
        self._schemas = schemas

    def create_shared_tables(self) -> None:
        """Create the tables that do not belong to one synced table, or add the columns that they lack."""
        self._db.execute(_QUIET)
        self._db.execute(_TABLES)
        existing = self._columns("_lakesync_tables")
        for name, declared in _ADDED_COLUMNS.items():
            if name not in existing:
                self._db.execute(f"ALTER TABLE _lakesync_tables ADD COLUMN {name} {declared}")

    def install(self, schema: TableSchema) -> None:
        """Create a table's triggers and journal, or adapt them to added columns."""
        self._create_journal(schema)
        existing = self._triggers_of(schema.table)
        anchor = existing.get(trigger_name(schema.table, ANCHOR))
        statements = trigger_statements(schema, anchor.rowid if anchor is not None else 0)
        # create them again if one is missing, or if the schema or the anchor's rowid has changed
        if {name: trigger.sql for name, trigger in existing.items()} != statements:
            self._create_triggers(schema, existing)
        digest = (self._digest(schema.table), schema.table)
        self._db.execute("UPDATE _lakesync_tables SET triggers = ? WHERE tbl = ?", digest)

    def is_intact(self, table: str) -> bool:
        """Return whether the table still has the triggers that were created for it.

        SQLite drops triggers with their table, moves them with a renamed one, and rewrites them for a renamed column.
        """
        ((digest,),) = self._db.execute("SELECT triggers FROM _lakesync_tables WHERE tbl = ?", (table,))
        if digest is not None:
            return bool(digest == self._digest(table))
        # a file of an earlier version has no digest: only the names can be compared
        existing = {
            name for name, trigger in self._triggers_of(table).items() if trigger.on_table.lower() == table.lower()
        }
        return existing >= {trigger_name(table, name) for name in _EARLIER_TRIGGERS}

    def journal_unknown_rows(self, table: str) -> None:
        """Journal rows as inserted that neither the gateway nor an edit nor the journal knows."""
        self._journal_as_inserted(
            table,
            f"row_id NOT IN (SELECT row_id FROM {known_table(table)}) "  # it has the rows that the gateway has
            "AND row_id NOT IN (SELECT row_id FROM _lakesync_edits WHERE tbl = ?) "
            f"AND row_id NOT IN (SELECT row_id FROM {before_table(table)})",
            table,
        )

    def journal_reappeared_rows(self, table: str, deleted: Collection[str]) -> None:
        """Journal rows that the app had deleted and that are in a recreated table.

        A deletion that is still in the journal becomes an update there. If it is an edit already, the row is journalled
        as inserted.

        Args:
            table: the recreated table.
            deleted: ids of rows whose deletion is an edit that was not pushed.
        """
        cells = "".join(f', "c_{name}" = t."{name}"' for name in self._schemas[table].types)
        self._db.execute(
            f'UPDATE {after_table(table)} SET at = {NOW_MS}, here = 1{cells} FROM "{table}" t '
            f"WHERE t.row_id = {after_table(table)}.row_id AND NOT {after_table(table)}.here"
        )
        for row_id in deleted:
            self._journal_as_inserted(
                table, f"row_id = ? AND row_id NOT IN (SELECT row_id FROM {before_table(table)})", row_id
            )

    @contextmanager
    def without_triggers(self, writes: Iterable[tuple[str, Operation]]) -> Iterator[None]:
        """Drop the triggers that some writes would fire, and create them again afterwards.

        Use it within a transaction only, so that no other connection sees a table without triggers. The rollback after
        an error restores them.

        Args:
            writes: the table and the operation of each kind of write.
        """
        dropped = [statement for table, operation in writes for statement in self._drop_triggers(table, operation)]
        yield
        for statement in dropped:
            self._db.execute(statement)

    @contextmanager
    def without_any_trigger(self) -> Iterator[None]:
        """Drop the triggers of all tables, and create them again afterwards. Use it within a transaction only."""
        with self.without_triggers(product(self._schemas, get_args(Operation))):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write to the app's tables without journalling, within a transaction only; its rollback ends the pause too."""
        self._db.execute("INSERT INTO _lakesync_quiet VALUES (1)")
        yield
        self._db.execute("DELETE FROM _lakesync_quiet")

    def notify_watches(self, tables: set[str]) -> None:
        """Count a change of these tables, so that watches (the app's live queries) run again."""
        statement = "UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = ?"
        self._db.executemany(statement, [(table,) for table in tables])

    def read_journal(self, limit: int) -> list[LocalChange]:
        """Return the oldest rows of the journal, each before and after. Invalid UTF-8 is repaired first.

        Args:
            limit: rows, at most.
        """
        try:
            return self._read_journal(limit)
        except sqlite3.OperationalError as error:
            if UTF8_ERROR_MARK not in str(error):
                raise
        with self.paused():
            for table, schema in self._schemas.items():
                escape_invalid_utf8(self._db, table, (before_table(table), after_table(table)), schema.types)
        return self._read_journal(limit)

    def filter_journalled(self, table: str, keys: Iterable[RowKey]) -> list[RowKey]:
        """Return those of a table's rows that are in the journal.

        Args:
            table: a synced table.
            keys: rows of this table.
        """
        journalled = {row_id for (row_id,) in self._db.execute(f"SELECT row_id FROM {before_table(table)}")}
        return [key for key in keys if key[1] in journalled]

    def remove(self, changes: list[LocalChange]) -> None:
        """Remove changes from the journal once they are edits."""
        by_table: dict[str, list[tuple[str]]] = {}
        for change in changes:
            by_table.setdefault(change.table, []).append((change.row_id,))
        for table, row_ids in by_table.items():
            for journal in (before_table(table), after_table(table)):
                self._db.executemany(f"DELETE FROM {journal} WHERE row_id = ?", row_ids)

    def remove_unwritten(self) -> None:
        """Remove rows that were about to be written but were not, as by INSERT OR IGNORE.

        Call it when the journal was read completely: all other rows are edits then.
        """
        for table in self._schemas:
            if self._db.execute(f"SELECT 1 FROM {before_table(table)} LIMIT 1").fetchone():
                self._db.execute(f"DELETE FROM {before_table(table)}")

    def count(self) -> int:
        """Return the number of rows in the journal."""
        counts = [
            self._db.execute(f"SELECT count(*) FROM {after_table(table)}").fetchone()[0] for table in self._schemas
        ]
        return sum(counts)

    def oldest_change_at(self) -> int | None:
        """Return when the oldest row was written, in milliseconds of this machine's clock; None for no row."""
        times = [self._db.execute(f"SELECT min(at) FROM {after_table(table)}").fetchone()[0] for table in self._schemas]
        return min((time for time in times if time is not None), default=None)

    def _read_journal(self, limit: int) -> list[LocalChange]:
        """Read the journal as `read_journal` does.

        Raises:
            sqlite3.OperationalError: a text is not valid UTF-8.
        """
        result: list[LocalChange] = []
        for table, schema in self._schemas.items():
            types = schema.types
            for row_id, at, existed, exists, *cells in self._journal_rows(table, list(types), limit):
                before = _row(types, cells[: len(types)]) if existed else None
                after = _row(types, cells[len(types) :]) if exists else None
                if before is None and after is not None:  # an INSERT has no null columns
                    after = {name: value for name, value in after.items() if value is not None}
                result.append(LocalChange(table, row_id, before, after, at))
        result.sort(key=lambda change: change.at or 0)
        return result[:limit]

    def _journal_rows(self, table: str, names: list[str], limit: int) -> Iterator[Sequence[Any]]:
        """Yield row id, time, whether the row existed and exists, then its cells before and its cells after."""
        before, after = [f'b."c_{name}"' for name in names], [f'a."c_{name}"' for name in names]
        fits_one_query = JOURNAL_COLUMNS + 2 * len(names) <= self._db.getlimit(sqlite3.SQLITE_LIMIT_COLUMN)
        selected = ", ".join(["a.row_id, a.at, b.there, a.here", *before, *(after if fits_one_query else [])])
        rows = self._db.execute(
            f"SELECT {selected} FROM (SELECT * FROM {after_table(table)} ORDER BY at LIMIT ?) a "
            f"LEFT JOIN {before_table(table)} b ON b.row_id = a.row_id",
            (limit,),
        )
        if fits_one_query:
            yield from rows
            return
        select_after = f"SELECT {', '.join(after)} FROM {after_table(table)} a WHERE row_id = ?"
        for row in rows.fetchall():
            yield (*row, *self._db.execute(select_after, row[:1]).fetchone())

    def _create_journal(self, schema: TableSchema) -> None:
        """Create a table's two journal tables, or add the columns that they lack."""
        table = schema.table
        cells = "".join(f', "c_{column.name}"' for column in schema.columns)
        for journal, further in ((before_table(table), "there"), (after_table(table), "at INTEGER NOT NULL, here")):
            columns = f"row_id TEXT PRIMARY KEY NOT NULL, {further} INTEGER NOT NULL{cells}"
            self._db.execute(f"CREATE TABLE IF NOT EXISTS {journal} ({columns}) WITHOUT ROWID")
            existing = self._columns(journal.strip('"'))
            for column in schema.columns:
                if f"c_{column.name}" not in existing:
                    self._db.execute(f'ALTER TABLE {journal} ADD COLUMN "c_{column.name}"')
        unwritten = f"row_id NOT IN (SELECT row_id FROM {after_table(table)})"
        self._db.execute(f"DELETE FROM {before_table(table)} WHERE {unwritten}")
        self._migrate_earlier_journal(schema)

    def _migrate_earlier_journal(self, schema: TableSchema) -> None:
        """Move the journal of an earlier version, which kept rows only as they were before."""
        table = schema.table
        earlier = self._columns(f"_lakesync_was_{table}")
        if not earlier:
            return
        if self.is_intact(table):
            names = [name for name in schema.types if f"c_{name}" in earlier]
            cells, current = "".join(f', "c_{name}"' for name in names), "".join(f', t."{name}"' for name in names)
            source = f'"_lakesync_was_{table}" w'
            self._db.execute(
                f"INSERT INTO {before_table(table)} (row_id, there{cells}) SELECT row_id, there{cells} FROM {source}"
            )
            self._db.execute(
                f"INSERT INTO {after_table(table)} (row_id, at, here{cells}) SELECT w.row_id, w.at, "
                f't.row_id IS NOT NULL{current} FROM {source} LEFT JOIN "{table}" t USING (row_id)'
            )
        self._db.execute(f'DROP TABLE "_lakesync_was_{table}"')

    def _create_triggers(self, schema: TableSchema, existing: Collection[str]) -> None:
        """Drop the existing triggers of a table and create those of its schema."""
        for name in existing:
            self._db.execute(f'DROP TRIGGER "{name}"')
        ((next_rowid,),) = self._db.execute("SELECT coalesce(max(rowid), 0) + 1 FROM sqlite_master")
        statements = trigger_statements(schema, next_rowid)
        # create the anchor first, so that it gets the rowid by which the SQL of all triggers finds it
        self._db.execute(statements.pop(trigger_name(schema.table, ANCHOR)))
        for statement in statements.values():
            self._db.execute(statement)

    def _journal_as_inserted(self, table: str, where: str, argument: str) -> None:
        """Journal the rows that fulfil a condition with one parameter, as if they had been inserted now."""
        cells = "".join(f', "c_{name}"' for name in self._schemas[table].types)
        columns = "".join(f', "{name}"' for name in self._schemas[table].types)
        self._db.execute(
            f"INSERT INTO {after_table(table)} (row_id, at, here{cells}) "
            f'SELECT row_id, {NOW_MS}, 1{columns} FROM "{table}" WHERE {where}',
            (argument,),
        )
        self._db.execute(
            f'INSERT INTO {before_table(table)} (row_id, there) SELECT row_id, 0 FROM "{table}" WHERE {where}',
            (argument,),
        )

    def _drop_triggers(self, table: str, operation: Operation) -> list[str]:
        """Drop the triggers of one operation; return the statements that create them."""
        names = {trigger_name(table, name) for name, kind in TRIGGERS.items() if kind.droppable_during == operation}
        statements = {name: trigger.sql for name, trigger in self._triggers_of(table).items() if name in names}
        for name in statements:
            self._db.execute(f'DROP TRIGGER "{name}"')
        return list(statements.values())

    def _triggers_of(self, table: str) -> dict[str, _Trigger]:
        """Return a table's triggers by name, also if another table has them now."""
        names = [trigger_name(table, name) for name in TRIGGERS]
        triggers = self._db.execute(
            "SELECT name, rowid, tbl_name, sql FROM sqlite_master "
            f"WHERE type = 'trigger' AND name IN ({', '.join('?' * len(names))})",
            names,
        )
        return {name: _Trigger(*fields) for name, *fields in triggers}

    def _digest(self, table: str) -> str:
        """Return a digest of a table's triggers as they are now; it changes if one is dropped, moved or rewritten."""
        triggers = sorted(
            (name, trigger.on_table.lower(), trigger.sql) for name, trigger in self._triggers_of(table).items()
        )
        return hashlib.sha256(repr(triggers).encode()).hexdigest()

    def _columns(self, table: str) -> set[str]:
        """Return the names of a table's columns; empty if the table does not exist."""
        return {name for _, name, *_ in self._db.execute(f'PRAGMA table_info("{table}")')}


def _row(types: Mapping[str, ColumnType], cells: list[SqlValue]) -> dict[str, object]:
    """Return a row's SQLite values as Python values by column."""
    return {name: python_value(kind, cell) for (name, kind), cell in zip(types.items(), cells, strict=True)}
