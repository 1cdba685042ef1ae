"""Change tracking: triggers in the app's file that journal every write to a synced table.

`SqliteClientStore` creates the triggers, and `Replica` reads the journal, whose rows become edits (changes to push).
For each row written since the journal was last read, the triggers keep the row before its first write
(`_lakesync_before_TABLE`; its column `there` says whether the row existed) and its current values
(`_lakesync_after_TABLE`; `here` says whether the row exists, `at` when it was last written). In both, `c_NAME` has the
value of the column NAME. Triggers are plain SQL: they run on each connection of every program that opens the file, and
commit or roll back with the app's own transaction.

Only the journal says what the app changed. A row that is missing from the table was not necessarily deleted: the table
may have been dropped, recreated or renamed.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from lakesync.client.core.store import LocalChange
from lakesync.client.sqlite.sql_values import (
    INVALID_ID,
    INVALID_VALUES,
    UTF8_ERROR_MARK,
    VALID_ID,
    SqlValue,
    escape_invalid_utf8,
    python_value,
)
from lakesync.client.sqlite.stamps import known_table
from lakesync.model.schema import ColumnType, TableSchema
from lakesync.model.types import RowKey

NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""SQL for this machine's time in milliseconds."""

Operation = Literal["INSERT", "UPDATE", "DELETE"]
JOURNAL_COLUMNS = 4
"""Columns that reading the journal selects besides those of the row."""
DROP_TRIGGERS_FROM = 300
"""From this many rows on, dropping and recreating a table's triggers is faster than firing them."""

_QUIET = "CREATE TABLE IF NOT EXISTS _lakesync_quiet (one INTEGER PRIMARY KEY)"
"""While this table has a row, no trigger journals: LakeSync itself is writing."""
_TABLES = """CREATE TABLE IF NOT EXISTS _lakesync_tables (
    tbl TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, schema BLOB NOT NULL,
    changes INTEGER NOT NULL DEFAULT 0, triggers TEXT, remade INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"""
"""`changes` counts writes, for watches (queries that run again after a change). `triggers` is the digest of the
triggers as they were created. `remade` is set when the table was recreated, until the client has requested its rows."""
_ADDED_COLUMNS = {"triggers": "TEXT", "remade": "INTEGER NOT NULL DEFAULT 0"}
"""Columns of `_lakesync_tables` that files of earlier versions lack."""

_TRIGGERS: dict[str, tuple[str, Operation | None]] = {
    "insert": ("BEFORE INSERT", "INSERT"),
    "inserted": ("AFTER INSERT", "INSERT"),
    "move": ("BEFORE UPDATE OF row_id", None),
    "moved": ("AFTER UPDATE OF row_id", None),
    "updated": ("AFTER UPDATE", "UPDATE"),
    "deleted": ("AFTER DELETE", "DELETE"),
}
"""When each trigger fires, and the operation during which LakeSync may drop it; None: never.

`insert` journals a row that INSERT OR REPLACE is about to replace, `inserted` the new row. A change of a row id counts
as a delete and an insert: `move` journals what is at the new id before, `moved` that the old id is gone, and `updated`,
which fires too, the rest. `updated` and `deleted` journal the row before and after."""
_ANCHOR = "move"
"""The trigger whose row in `sqlite_master` shows which table all of them are on; never dropped alone."""
_EARLIER_TRIGGERS = {"insert", "inserted", "move", "updated", "deleted"}
"""The triggers of earlier versions, which stored no digest."""
_CASES_PER_SELECT = 200
"""SQLite limits the length of a CASE expression."""


def before_table(table: str) -> str:
    """Return the quoted name of the journal of a table's rows before their first write."""
    return f'"_lakesync_before_{table}"'


def after_table(table: str) -> str:
    """Return the quoted name of the journal of the same rows as they are now."""
    return f'"_lakesync_after_{table}"'


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
        anchor_rowid, _, _ = existing.get(_trigger_name(schema.table, _ANCHOR), (0, "", ""))
        existing_statements = {name: sql for name, (_, _, sql) in existing.items()}
        if existing_statements != _trigger_statements(schema, anchor_rowid):
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
        existing = {
            name for name, (_, on_table, _) in self._triggers_of(table).items() if on_table.lower() == table.lower()
        }
        return existing >= {_trigger_name(table, name) for name in _EARLIER_TRIGGERS}

    def journal_unknown_rows(self, table: str) -> None:
        """Journal rows as inserted that neither the gateway nor an edit nor the journal knows."""
        self._journal_as_inserted(
            table,
            f"row_id NOT IN (SELECT row_id FROM {known_table(table)}) "
            "AND row_id NOT IN (SELECT row_id FROM _lakesync_edits WHERE tbl = ?) "
            f"AND row_id NOT IN (SELECT row_id FROM {before_table(table)})",
            table,
        )

    def journal_reappeared_rows(self, table: str, deleted: Collection[str]) -> None:
        """Journal rows that the app had deleted and that are in a recreated table.

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
    def without_triggers(self, writes: Iterable[tuple[Operation, Mapping[str, int]]]) -> Iterator[None]:
        """Drop triggers that many writes would fire, and create them again afterwards.

        Use it within a transaction only, so that no other connection sees a table without triggers. The rollback after
        an error restores them.

        Args:
            writes: for each operation, the number of rows that it writes by table.
        """
        dropped = [
            statement
            for operation, tables in writes
            for table, count in tables.items()
            if count >= DROP_TRIGGERS_FROM
            for statement in self._drop_triggers(table, operation)
        ]
        yield
        for statement in dropped:
            self._db.execute(statement)

    @contextmanager
    def without_any_trigger(self) -> Iterator[None]:
        """Drop the triggers of all tables, and create them again afterwards. Use it within a transaction only."""
        operations: tuple[Operation, ...] = ("INSERT", "UPDATE", "DELETE")
        with self.without_triggers([(each, dict.fromkeys(self._schemas, DROP_TRIGGERS_FROM)) for each in operations]):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write to the app's tables without journalling, within a transaction only; its rollback ends the pause too."""
        self._db.execute("INSERT INTO _lakesync_quiet VALUES (1)")
        yield
        self._db.execute("DELETE FROM _lakesync_quiet")

    def notify_watches(self, tables: set[str]) -> None:
        """Count a change of these tables, so that watches run their queries again."""
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
        statements = _trigger_statements(schema, next_rowid)  # the anchor is created first, so it gets this rowid
        self._db.execute(statements.pop(_trigger_name(schema.table, _ANCHOR)))
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
        names = {_trigger_name(table, name) for name, (_, dropped_for) in _TRIGGERS.items() if dropped_for == operation}
        statements = {name: sql for name, (_, _, sql) in self._triggers_of(table).items() if name in names}
        for name in statements:
            self._db.execute(f'DROP TRIGGER "{name}"')
        return list(statements.values())

    def _triggers_of(self, table: str) -> dict[str, tuple[int, str, str]]:
        """Return a table's triggers by name: their rowid in `sqlite_master`, the table they are on, and their SQL."""
        names = [_trigger_name(table, name) for name in _TRIGGERS]
        triggers = self._db.execute(
            "SELECT name, rowid, tbl_name, sql FROM sqlite_master "
            f"WHERE type = 'trigger' AND name IN ({', '.join('?' * len(names))})",
            names,
        )
        return {name: (rowid, on_table, sql) for name, rowid, on_table, sql in triggers}

    def _digest(self, table: str) -> str:
        """Return a digest of a table's triggers as they are now; it changes if one is dropped, moved or rewritten."""
        triggers = sorted(
            (name, on_table.lower(), sql) for name, (_, on_table, sql) in self._triggers_of(table).items()
        )
        return hashlib.sha256(repr(triggers).encode()).hexdigest()

    def _columns(self, table: str) -> set[str]:
        """Return the names of a table's columns; empty if the table does not exist."""
        return {name for _, name, *_ in self._db.execute(f'PRAGMA table_info("{table}")')}


def _trigger_name(table: str, trigger: str) -> str:
    """Return the name of a table's trigger, given its key in `_TRIGGERS`."""
    return f"_lakesync_{table}_{trigger}"


def _row(types: Mapping[str, ColumnType], cells: list[SqlValue]) -> dict[str, object]:
    """Return a row's SQLite values as Python values by column."""
    return {name: python_value(kind, cell) for (name, kind), cell in zip(types.items(), cells, strict=True)}


def _trigger_statements(schema: TableSchema, anchor: int) -> dict[str, str]:
    """Return the statements that create a table's triggers, by trigger name.

    In SQLite the `OR REPLACE` of the app's statement overrides an `OR IGNORE` inside its triggers. So these use ON
    CONFLICT, which it does not override. The row after a write is read from the table, not from NEW, because a trigger
    of the app may have changed it.

    Args:
        schema: the table's schema.
        anchor: the rowid of the anchor trigger in `sqlite_master`. VACUUM may change it; the triggers then search it.
    """
    table, before, after = schema.table, before_table(schema.table), after_table(schema.table)
    names = [column.name for column in schema.columns]
    cells = "".join(f', "c_{name}"' for name in names)
    current = "".join(f', "{name}"' for name in names)
    old = "".join(f', OLD."{name}"' for name in names)
    excluded = "".join(f', "c_{name}" = excluded."c_{name}"' for name in names)
    is_anchor = f"name = '{_trigger_name(table, _ANCHOR)}' AND tbl_name = '{table}' COLLATE NOCASE"
    is_tracked = (
        "NOT EXISTS (SELECT 1 FROM _lakesync_quiet) AND "  # LakeSync itself is not writing
        f"(EXISTS (SELECT 1 FROM sqlite_master WHERE rowid = {anchor} AND {is_anchor}) "  # the table was not renamed
        f"OR EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND {is_anchor}))"
    )
    keep_first = "ON CONFLICT (row_id) DO NOTHING;"
    journal_replaced = (
        f'INSERT INTO {before} (row_id, there{cells}) SELECT row_id, 1{current} FROM "{table}" '
        f"WHERE row_id = NEW.row_id AND {is_tracked} {keep_first}"
    )
    journal_absent = f"INSERT INTO {before} (row_id, there) VALUES (NEW.row_id, 0) {keep_first}"
    journal_old = f"INSERT INTO {before} (row_id, there{cells}) VALUES (OLD.row_id, 1{old}) {keep_first}"
    journal_current = (
        f'INSERT INTO {after} (row_id, at, here{cells}) SELECT row_id, {NOW_MS}, 1{current} FROM "{table}" '
        f"WHERE row_id = NEW.row_id ON CONFLICT (row_id) DO UPDATE SET at = excluded.at, here = 1{excluded};"
    )
    journal_deleted = (
        f"INSERT INTO {after} (row_id, at, here) VALUES (OLD.row_id, {NOW_MS}, 0) "
        "ON CONFLICT (row_id) DO UPDATE SET at = excluded.at, here = 0;"
    )
    count_change = f"UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = '{table}';"
    id_changed = "NEW.row_id IS NOT OLD.row_id AND "
    column_changed = 'NEW."{0}" IS NOT OLD."{0}" AND '
    bodies = {
        "insert": (None, journal_replaced),
        "inserted": ("", _value_checks(schema, "") + journal_absent + journal_current + count_change),
        "move": (id_changed, _id_check(table) + journal_replaced + journal_absent),
        "moved": (id_changed, journal_deleted),
        "updated": ("", _value_checks(schema, column_changed) + journal_old + journal_current + count_change),
        "deleted": ("", journal_old + journal_deleted + count_change),
    }
    return {
        _trigger_name(table, name): (
            f'CREATE TRIGGER "{_trigger_name(table, name)}" {_TRIGGERS[name][0]} ON "{table}" '
            f"{'' if condition is None else f'WHEN {condition}{is_tracked} '}BEGIN {body} END"
        )
        for name, (condition, body) in bodies.items()
    }


def _id_check(table: str) -> str:
    """Return the statement of a trigger that rejects an invalid row id."""
    return f"SELECT CASE WHEN {INVALID_ID.format('NEW.row_id')} THEN {_abort('row_id', table, VALID_ID)} END;"


def _value_checks(schema: TableSchema, if_changed: str) -> str:
    """Return statements that abort a write of an invalid value.

    Args:
        schema: the table's schema.
        if_changed: a condition with `{0}` for the column, for updates; empty for inserts, which also check the row id.
    """
    table = schema.table
    cases = [] if if_changed else [f"WHEN {INVALID_ID.format('NEW.row_id')} THEN {_abort('row_id', table, VALID_ID)}"]
    for column in schema.columns:
        invalid, expected = INVALID_VALUES[column.type]
        condition = if_changed.format(column.name) + f"({invalid})".format(f'NEW."{column.name}"')
        cases.append(f"WHEN {condition} THEN {_abort(column.name, table, expected)}")
    chunks = [cases[start : start + _CASES_PER_SELECT] for start in range(0, len(cases), _CASES_PER_SELECT)]
    return "".join(f"SELECT CASE {' '.join(chunk)} END;" for chunk in chunks)


def _abort(name: str, table: str, expected: str) -> str:
    """Return the SQL that aborts a write, with a message: which column of which table takes what."""
    subject = name if name == "row_id" else f"column {name}"
    return f"RAISE(ABORT, 'lakesync: {subject} of {table} takes {expected}')"
