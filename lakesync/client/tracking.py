"""What an app writes into its tables, by whatever way: triggers keep each row as it was before.

The triggers are plain SQL, so that they work on every connection of every program that opens the file. The first write
to a row since it was last looked at keeps the row as it was in `_lakesync_was_TABLE`; a counter a table tells who
watches it. Both commit, or are undone, with the app's own transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from lakesync.client import texts
from lakesync.client.core.records import LocalChange
from lakesync.client.sql_values import SqlValue, python_value
from lakesync.client.stamps import known_of
from lakesync.schema import ColumnType, TableSchema
from lakesync.types import RowKey
from lakesync.validation import MAX_ID_CHARS

NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""This machine's clock in milliseconds, as SQLite reads it."""

Event = Literal["INSERT", "UPDATE", "DELETE"]
BESIDES = 4
"""Columns that are asked for beside a row's own."""
MANY = 300
"""Rows of a table from which on its triggers are better taken away while they are written."""

_QUIET = "CREATE TABLE IF NOT EXISTS _lakesync_quiet (one INTEGER PRIMARY KEY)"
_TABLES = """CREATE TABLE IF NOT EXISTS _lakesync_tables (
    tbl TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, schema BLOB NOT NULL,
    changes INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"""
_HEARD = "NOT EXISTS (SELECT 1 FROM _lakesync_quiet)"

NO_ID = f"(typeof({{0}}) <> 'text' OR length({{0}}) NOT BETWEEN 1 AND {MAX_ID_CHARS} OR instr({{0}}, char(0)))"
"""What a row's id that cannot be sent looks like."""
MISFITS: dict[ColumnType, tuple[str, str]] = {
    "string": ("typeof({0}) = 'blob'", "text"),
    "number": (
        "typeof({0}) IN ('text', 'blob') OR {0} NOT BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308",
        "a finite number",
    ),
    "boolean": ("{0} NOT IN (0, 1)", "0 or 1"),
    "json": ("typeof({0}) = 'blob' OR ({0} IS NOT NULL AND NOT json_valid({0}))", "JSON text"),
    "null": ("{0} IS NOT NULL", "NULL"),
}
"""By type: what a value that cannot be sent looks like, and what to write instead."""


def was(table: str) -> str:
    """Where a table's rows are kept as they were."""
    return f'"_lakesync_was_{table}"'


class Tracking:
    """The triggers of an app's tables, and what they kept."""

    def __init__(self, db: sqlite3.Connection, schemas: Mapping[str, TableSchema]) -> None:
        self._db = db
        self._schemas = schemas

    def make_tables(self) -> None:
        """Make what is kept beside the tables."""
        self._db.execute(_QUIET)
        self._db.execute(_TABLES)

    def make(self, schema: TableSchema, *, take: bool = False) -> None:
        """Track a table from now on.

        Args:
            take: rows that it has already and that nobody knows are taken for new ones.
        """
        table, keep = schema.table, was(schema.table)
        columns = "".join(f', "c_{column.name}"' for column in schema.columns)
        self._db.execute(
            f"CREATE TABLE IF NOT EXISTS {keep} "
            f"(row_id TEXT PRIMARY KEY NOT NULL, at INTEGER NOT NULL, there INTEGER NOT NULL{columns}) WITHOUT ROWID"
        )
        for missing in [c.name for c in schema.columns if f"c_{c.name}" not in self._columns(f"_lakesync_was_{table}")]:
            self._db.execute(f'ALTER TABLE {keep} ADD COLUMN "c_{missing}"')
        for name, statement in _triggers(schema).items():
            found = self._db.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?", (name,))
            if found.fetchone() != (statement,):
                self._db.execute(f'DROP TRIGGER IF EXISTS "{name}"')
                self._db.execute(statement)
        if take:
            self._adopt(table)

    def restore(self, schema: TableSchema, lost: Collection[str]) -> None:
        """After somebody took columns of a table away, which are empty now: nothing of that counts as the app's doing.

        Args:
            lost: the columns; all of them where the table was gone itself.
        """
        keep = was(schema.table)
        kept = self._columns(f"_lakesync_was_{schema.table}")
        if not kept or not lost:
            return
        if {f"c_{name}" for name in lost} >= {name for name in kept if name.startswith("c_")}:
            self._db.execute(f"DROP TABLE {keep}")
            return
        before = ", ".join(
            f'"{name}" = (SELECT "c_{name}" FROM {keep} w WHERE w.row_id = "{schema.table}".row_id)' for name in lost
        )
        with self.quiet():
            self._db.execute(f'UPDATE "{schema.table}" SET {before} WHERE row_id IN (SELECT row_id FROM {keep})')

    def adopt(self) -> None:
        """Take rows that nobody knows for new ones."""
        for table in self._schemas:
            self._adopt(table)

    def _adopt(self, table: str) -> None:
        self._db.execute(
            f'INSERT INTO {was(table)} (row_id, at, there) SELECT row_id, {NOW_MS}, 0 FROM "{table}" '
            f"WHERE row_id NOT IN (SELECT row_id FROM {known_of(table)}) "
            "AND row_id NOT IN (SELECT row_id FROM _lakesync_edits WHERE tbl = ?) "
            f"AND row_id NOT IN (SELECT row_id FROM {was(table)})",
            (table,),
        )

    @contextmanager
    def without(self, writes: Iterable[tuple[Event, Mapping[str, int]]]) -> Iterator[None]:
        """Inside, no trigger looks at writes of these kinds where a table gets many of them.

        Within a transaction only: nobody else sees it.
        """
        dropped: list[str] = []
        for event, tables in writes:
            for table in [table for table, count in tables.items() if count >= MANY]:
                for name, statement in _triggers(self._schemas[table], event).items():
                    self._db.execute(f'DROP TRIGGER IF EXISTS "{name}"')
                    dropped.append(statement)
        yield
        for statement in dropped:
            self._db.execute(statement)

    @contextmanager
    def absent(self) -> Iterator[None]:
        """Inside, there are no triggers, for a great many rows. Within a transaction only: nobody else sees it."""
        for schema in self._schemas.values():
            for name in _triggers(schema):
                self._db.execute(f'DROP TRIGGER IF EXISTS "{name}"')
        yield
        for schema in self._schemas.values():
            self.make(schema)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside, what is written to the app's tables is not the app's doing. Within a transaction only."""
        self._db.execute("INSERT INTO _lakesync_quiet VALUES (1)")
        yield
        self._db.execute("DELETE FROM _lakesync_quiet")

    def changed(self, tables: set[str]) -> None:
        """Tell those who watch these tables."""
        statement = "UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = ?"
        self._db.executemany(statement, [(table,) for table in tables])

    def touched(self, most: int) -> list[LocalChange]:
        """Rows that were written to and not yet looked at, as they were and as they are, oldest first."""
        try:
            return self._touched(most)
        except sqlite3.OperationalError as error:
            if texts.MARK not in str(error):
                raise
        with self.quiet():
            for table, schema in self._schemas.items():
                texts.mend(self._db, table, was(table), schema.types)
        return self._touched(most)

    def _touched(self, most: int) -> list[LocalChange]:
        found: list[LocalChange] = []
        for table, schema in self._schemas.items():
            types = schema.types
            for row_id, at, there, is_there, *cells in self._as_kept_and_as_they_are(table, list(types), most):
                before = _row(types, cells[: len(types)]) if there else None
                after = _row(types, cells[len(types) :]) if is_there else None
                if before is None and after is not None:
                    after = {name: value for name, value in after.items() if value is not None}
                found.append(LocalChange(table, row_id, before, after, at))
        found.sort(key=lambda change: change.at or 0)
        return found[:most]

    def _as_kept_and_as_they_are(self, table: str, names: list[str], most: int) -> Iterator[Sequence[Any]]:
        """Row id, moment, whether it was there and whether it is, then its cells as they were and as they are."""
        kept, here = [f'w."c_{name}"' for name in names], [f't."{name}"' for name in names]
        both = BESIDES + 2 * len(names) <= self._db.getlimit(sqlite3.SQLITE_LIMIT_COLUMN)
        asked = ", ".join(["w.row_id, w.at, w.there, t.row_id IS NOT NULL", *kept, *(here if both else [])])
        rows = self._db.execute(
            f'SELECT {asked} FROM {was(table)} w LEFT JOIN "{table}" t ON t.row_id = w.row_id ORDER BY w.at LIMIT ?',
            (most,),
        )
        if both:
            yield from rows
            return
        for row in rows.fetchall():
            found = self._db.execute(f'SELECT {", ".join(here)} FROM "{table}" t WHERE row_id = ?', row[:1]).fetchone()
            yield (*row, *(found or [None] * len(names)))

    def among_touched(self, table: str, keys: Iterable[RowKey]) -> list[RowKey]:
        """Which of these rows of a table were written to and not yet looked at."""
        touched = {row_id for (row_id,) in self._db.execute(f"SELECT row_id FROM {was(table)}")}
        return [key for key in keys if key[1] in touched]

    def forget(self, changes: list[LocalChange]) -> None:
        """These rows were looked at."""
        by_table: dict[str, list[tuple[str]]] = {}
        for change in changes:
            by_table.setdefault(change.table, []).append((change.row_id,))
        for table, row_ids in by_table.items():
            self._db.executemany(f"DELETE FROM {was(table)} WHERE row_id = ?", row_ids)

    def count(self) -> int:
        """How many rows were written to and not yet looked at."""
        counts = [self._db.execute(f"SELECT count(*) FROM {was(table)}").fetchone()[0] for table in self._schemas]
        return sum(counts)

    def oldest(self) -> int | None:
        """When the oldest of them was written to, in milliseconds on this machine's clock."""
        moments = [self._db.execute(f"SELECT min(at) FROM {was(table)}").fetchone()[0] for table in self._schemas]
        return min((moment for moment in moments if moment is not None), default=None)

    def _columns(self, table: str) -> dict[str, int]:
        return {name: key for _, name, _, _, _, key in self._db.execute(f'PRAGMA table_info("{table}")')}


def trigger_names(table: str) -> set[str]:
    """What a table's triggers are called."""
    return {_named(table, name) for name in ("insert", "inserted", "move", "updated", "deleted")}


def _named(table: str, trigger: str) -> str:
    return f"_lakesync_{table}_{trigger}"


def _row(types: Mapping[str, ColumnType], cells: list[SqlValue]) -> dict[str, object]:
    return {name: python_value(kind, cell) for (name, kind), cell in zip(types.items(), cells, strict=True)}


def _triggers(schema: TableSchema, event: Event | None = None) -> dict[str, str]:
    """A table's triggers by name; those that look at every write of one kind."""
    table, keep = schema.table, was(schema.table)
    names = [column.name for column in schema.columns]
    kept = "".join(f', "c_{name}"' for name in names)
    here = "".join(f', "{name}"' for name in names)
    old = "".join(f', OLD."{name}"' for name in names)

    def unless_kept(which: str) -> str:
        return f"NOT EXISTS (SELECT 1 FROM {keep} WHERE row_id = {which}.row_id)"

    before = f"INSERT INTO {keep} (row_id, at, there{kept}) SELECT"
    replaced = f'{before} row_id, {NOW_MS}, 1{here} FROM "{table}" WHERE row_id = NEW.row_id AND {unless_kept("NEW")};'
    absent = f"INSERT INTO {keep} (row_id, at, there) SELECT NEW.row_id, {NOW_MS}, 0 WHERE {unless_kept('NEW')};"
    gone = f"{before} OLD.row_id, {NOW_MS}, 1{old} WHERE {unless_kept('OLD')};"
    counted = f"UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = '{table}';"

    def again(which: str) -> str:
        return f"UPDATE {keep} SET at = {NOW_MS} WHERE row_id = {which}.row_id;"

    bodies = {
        "insert": ("BEFORE INSERT", "", replaced),
        "inserted": ("AFTER INSERT", "", _checks(schema, "") + absent + again("NEW") + counted),
        "move": ("BEFORE UPDATE OF row_id", "NEW.row_id IS NOT OLD.row_id AND ", _id_check(table) + replaced + absent),
        "updated": (
            "AFTER UPDATE",
            "",
            _checks(schema, 'NEW."{0}" IS NOT OLD."{0}" AND ') + gone + again("OLD") + counted,
        ),
        "deleted": ("AFTER DELETE", "", gone + again("OLD") + counted),
    }
    return {
        _named(table, name): (
            f'CREATE TRIGGER "{_named(table, name)}" {moment} ON "{table}" WHEN {condition}{_HEARD} BEGIN {body} END'
        )
        for name, (moment, condition, body) in bodies.items()
        if event is None or moment.endswith(event)
    }


def _id_check(table: str) -> str:
    return (
        f"SELECT RAISE(ABORT, 'lakesync: row_id of {table} takes text of 1 to {MAX_ID_CHARS} characters') "
        f"WHERE {NO_ID.format('NEW.row_id')};"
    )


def _checks(schema: TableSchema, if_changed: str) -> str:
    parts = [] if if_changed else [_id_check(schema.table)]
    for column in schema.columns:
        bad, good = MISFITS[column.type]
        condition = bad.format(f'NEW."{column.name}"')
        parts.append(
            f"SELECT RAISE(ABORT, 'lakesync: column {column.name} of {schema.table} takes {good}') "
            f"WHERE {if_changed.format(column.name)}({condition});"
        )
    return "".join(parts)
