"""The journal of what an app writes into its synced tables, by whatever way, kept by triggers in the file.

For each row that was written since the last look, the triggers keep the row as it was before its first write
(`_lakesync_before_TABLE`) and as it is now (`_lakesync_after_TABLE`). They are plain SQL, so they work on every
connection of every program that opens the file, and commit or roll back with the app's own transaction. The journal
alone says what the app did. The table itself does not: it may have been dropped, remade or renamed since, and a row
that is missing from it was not deleted for that.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from lakesync.client import texts
from lakesync.client.core.records import LocalChange
from lakesync.client.sql_values import SqlValue, python_value
from lakesync.client.stamps import known_of
from lakesync.client.value_checks import MISFITS, NO_ID, TAKEN_ID
from lakesync.model.schema import ColumnType, TableSchema
from lakesync.model.types import RowKey

NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""This machine's clock in milliseconds, as SQLite reads it."""

Event = Literal["INSERT", "UPDATE", "DELETE"]
BESIDES = 4
"""Columns that are asked for beside a row's own."""
MANY = 300
"""Rows of a table from which on its triggers are better dropped while LakeSync writes them."""

_QUIET = "CREATE TABLE IF NOT EXISTS _lakesync_quiet (one INTEGER PRIMARY KEY)"
_TABLES = """CREATE TABLE IF NOT EXISTS _lakesync_tables (
    tbl TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, schema BLOB NOT NULL,
    changes INTEGER NOT NULL DEFAULT 0, triggers TEXT, remade INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID"""
_ADDED = {"triggers": "TEXT", "remade": "INTEGER NOT NULL DEFAULT 0"}
"""Columns that files of earlier versions lack. `triggers` is the digest of a table's triggers as they were created."""

_TRIGGERS: dict[str, tuple[str, Event | None]] = {
    "insert": ("BEFORE INSERT", "INSERT"),
    "inserted": ("AFTER INSERT", "INSERT"),
    "move": ("BEFORE UPDATE OF row_id", None),
    "moved": ("AFTER UPDATE OF row_id", None),
    "updated": ("AFTER UPDATE", "UPDATE"),
    "deleted": ("AFTER DELETE", "DELETE"),
}
"""When each fires, and the kind of statement for which it may be dropped meanwhile."""
_ANCHOR = "move"
"""The trigger whose row in `sqlite_master` says on which table all of them are; never dropped alone."""
_FORMER = {"insert", "inserted", "move", "updated", "deleted"}
"""The triggers of earlier versions, of which no digest was kept."""


def before_of(table: str) -> str:
    """The journal of a table's rows as they were before their first write."""
    return f'"_lakesync_before_{table}"'


def after_of(table: str) -> str:
    """The journal of the same rows as they are now."""
    return f'"_lakesync_after_{table}"'


class Tracking:
    """The triggers of an app's tables, and the journal that they keep."""

    def __init__(self, db: sqlite3.Connection, schemas: Mapping[str, TableSchema]) -> None:
        self._db = db
        self._schemas = schemas

    def make_tables(self) -> None:
        """Create what all tables share."""
        self._db.execute(_QUIET)
        self._db.execute(_TABLES)
        there = self._columns("_lakesync_tables")
        for name, declared in _ADDED.items():
            if name not in there:
                self._db.execute(f"ALTER TABLE _lakesync_tables ADD COLUMN {name} {declared}")

    def make(self, schema: TableSchema) -> None:
        """Track a table, or bring its triggers and its journal in line with a grown schema."""
        self._make_journal(schema)
        found = self._found(schema.table)
        anchor = found.get(_named(schema.table, _ANCHOR), (0, "", ""))[0]
        if {name: sql for name, (_, _, sql) in found.items()} != _triggers(schema, anchor):
            self._make_triggers(schema, found)
        kept = (self._digest(schema.table), schema.table)
        self._db.execute("UPDATE _lakesync_tables SET triggers = ? WHERE tbl = ?", kept)

    def intact(self, table: str) -> bool:
        """Whether the table is tracked as it was: its triggers are those that were created, on the table of that name.

        They are dropped with their table, follow it where it is renamed, and are rewritten with a renamed column.
        """
        ((kept,),) = self._db.execute("SELECT triggers FROM _lakesync_tables WHERE tbl = ?", (table,))
        if kept is not None:
            return bool(kept == self._digest(table))
        there = {name for name, (_, of, _) in self._found(table).items() if of.lower() == table.lower()}
        return there >= {_named(table, name) for name in _FORMER}

    def adopt(self, table: str) -> None:
        """Journal rows that the gateway does not know, and no change names, as new ones."""
        self._journal_new(
            table,
            f"row_id NOT IN (SELECT row_id FROM {known_of(table)}) "
            "AND row_id NOT IN (SELECT row_id FROM _lakesync_edits WHERE tbl = ?) "
            f"AND row_id NOT IN (SELECT row_id FROM {before_of(table)})",
            table,
        )

    def adopt_deleted(self, table: str, deleted: Collection[str]) -> None:
        """Journal rows that are in a remade table although the app had deleted them: they are there again.

        Args:
            deleted: ids of rows whose deletion is recorded, but not sent.
        """
        cells = "".join(f', "c_{name}" = t."{name}"' for name in self._schemas[table].types)
        self._db.execute(
            f'UPDATE {after_of(table)} SET at = {NOW_MS}, here = 1{cells} FROM "{table}" t '
            f"WHERE t.row_id = {after_of(table)}.row_id AND NOT {after_of(table)}.here"
        )
        for row_id in deleted:
            self._journal_new(table, f"row_id = ? AND row_id NOT IN (SELECT row_id FROM {before_of(table)})", row_id)

    @contextmanager
    def without(self, writes: Iterable[tuple[Event, Mapping[str, int]]]) -> Iterator[None]:
        """Drop triggers while many rows of their table are written, and create them again as they were.

        Within a transaction only: no other connection sees it.

        Args:
            writes: kinds of statements, each with how many rows it writes in which table.
        """
        dropped = [
            statement
            for event, tables in writes
            for table, count in tables.items()
            if count >= MANY
            for statement in self._drop(table, event)
        ]
        yield
        for statement in dropped:
            self._db.execute(statement)

    @contextmanager
    def absent(self) -> Iterator[None]:
        """Drop the triggers of all tables meanwhile. Within a transaction only."""
        events: tuple[Event, ...] = ("INSERT", "UPDATE", "DELETE")
        with self.without([(event, dict.fromkeys(self._schemas, MANY)) for event in events]):
            yield

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Write to the app's tables without journalling it. Within a transaction only."""
        self._db.execute("INSERT INTO _lakesync_quiet VALUES (1)")
        yield
        self._db.execute("DELETE FROM _lakesync_quiet")

    def changed(self, tables: set[str]) -> None:
        """Notify those who watch these tables."""
        statement = "UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = ?"
        self._db.executemany(statement, [(table,) for table in tables])

    def touched(self, most: int) -> list[LocalChange]:
        """The oldest rows of the journal, each as it was and as it is.

        Args:
            most: rows.
        """
        try:
            return self._touched(most)
        except sqlite3.OperationalError as error:
            if texts.MARK not in str(error):
                raise
        with self.quiet():
            for table, schema in self._schemas.items():
                texts.mend(self._db, table, (before_of(table), after_of(table)), schema.types)
        return self._touched(most)

    def _touched(self, most: int) -> list[LocalChange]:
        found: list[LocalChange] = []
        for table, schema in self._schemas.items():
            types = schema.types
            for row_id, at, there, here, *cells in self._journal(table, list(types), most):
                before = _row(types, cells[: len(types)]) if there else None
                after = _row(types, cells[len(types) :]) if here else None
                if before is None and after is not None:
                    after = {name: value for name, value in after.items() if value is not None}
                found.append(LocalChange(table, row_id, before, after, at))
        found.sort(key=lambda change: change.at or 0)
        return found[:most]

    def _journal(self, table: str, names: list[str], most: int) -> Iterator[Sequence[Any]]:
        """Row id, moment, whether it was there and whether it is, then its cells as they were and as they are."""
        were, are = [f'b."c_{name}"' for name in names], [f'a."c_{name}"' for name in names]
        both = BESIDES + 2 * len(names) <= self._db.getlimit(sqlite3.SQLITE_LIMIT_COLUMN)
        asked = ", ".join(["a.row_id, a.at, b.there, a.here", *were, *(are if both else [])])
        rows = self._db.execute(
            f"SELECT {asked} FROM (SELECT * FROM {after_of(table)} ORDER BY at LIMIT ?) a "
            f"LEFT JOIN {before_of(table)} b ON b.row_id = a.row_id",
            (most,),
        )
        if both:
            yield from rows
            return
        one = f"SELECT {', '.join(are)} FROM {after_of(table)} a WHERE row_id = ?"
        for row in rows.fetchall():
            yield (*row, *self._db.execute(one, row[:1]).fetchone())

    def among_touched(self, table: str, keys: Iterable[RowKey]) -> list[RowKey]:
        """Which of these rows of a table the journal has."""
        touched = {row_id for (row_id,) in self._db.execute(f"SELECT row_id FROM {before_of(table)}")}
        return [key for key in keys if key[1] in touched]

    def forget(self, changes: list[LocalChange]) -> None:
        """Drop recorded rows from the journal."""
        by_table: dict[str, list[tuple[str]]] = {}
        for change in changes:
            by_table.setdefault(change.table, []).append((change.row_id,))
        for table, row_ids in by_table.items():
            for journal in (before_of(table), after_of(table)):
                self._db.executemany(f"DELETE FROM {journal} WHERE row_id = ?", row_ids)

    def forget_unwritten(self) -> None:
        """Once all is recorded, drop what was kept of rows that were not written after all, as by INSERT OR IGNORE."""
        for table in self._schemas:
            if self._db.execute(f"SELECT 1 FROM {before_of(table)} LIMIT 1").fetchone():
                self._db.execute(f"DELETE FROM {before_of(table)}")

    def count(self) -> int:
        """How many rows the journal has."""
        counts = [self._db.execute(f"SELECT count(*) FROM {after_of(table)}").fetchone()[0] for table in self._schemas]
        return sum(counts)

    def oldest(self) -> int | None:
        """When the oldest of them was written, in milliseconds on this machine's clock."""
        moments = [self._db.execute(f"SELECT min(at) FROM {after_of(table)}").fetchone()[0] for table in self._schemas]
        return min((moment for moment in moments if moment is not None), default=None)

    def _make_journal(self, schema: TableSchema) -> None:
        table = schema.table
        cells = "".join(f', "c_{column.name}"' for column in schema.columns)
        for journal, besides in ((before_of(table), "there"), (after_of(table), "at INTEGER NOT NULL, here")):
            columns = f"row_id TEXT PRIMARY KEY NOT NULL, {besides} INTEGER NOT NULL{cells}"
            self._db.execute(f"CREATE TABLE IF NOT EXISTS {journal} ({columns}) WITHOUT ROWID")
            there = self._columns(journal.strip('"'))
            for column in schema.columns:
                if f"c_{column.name}" not in there:
                    self._db.execute(f'ALTER TABLE {journal} ADD COLUMN "c_{column.name}"')
        unwritten = f"row_id NOT IN (SELECT row_id FROM {after_of(table)})"
        self._db.execute(f"DELETE FROM {before_of(table)} WHERE {unwritten}")
        self._take_former(schema)

    def _take_former(self, schema: TableSchema) -> None:
        """Take over the journal of an earlier version, which kept rows only as they were before."""
        table = schema.table
        former = self._columns(f"_lakesync_was_{table}")
        if not former:
            return
        if self.intact(table):
            names = [name for name in schema.types if f"c_{name}" in former]
            cells, here = "".join(f', "c_{name}"' for name in names), "".join(f', t."{name}"' for name in names)
            of = f'"_lakesync_was_{table}" w'
            self._db.execute(
                f"INSERT INTO {before_of(table)} (row_id, there{cells}) SELECT row_id, there{cells} FROM {of}"
            )
            self._db.execute(
                f"INSERT INTO {after_of(table)} (row_id, at, here{cells}) "
                f'SELECT w.row_id, w.at, t.row_id IS NOT NULL{here} FROM {of} LEFT JOIN "{table}" t USING (row_id)'
            )
        self._db.execute(f'DROP TABLE "_lakesync_was_{table}"')

    def _make_triggers(self, schema: TableSchema, found: Collection[str]) -> None:
        for name in found:
            self._db.execute(f'DROP TRIGGER "{name}"')
        ((anchor,),) = self._db.execute("SELECT coalesce(max(rowid), 0) + 1 FROM sqlite_master")
        statements = _triggers(schema, anchor)
        self._db.execute(statements.pop(_named(schema.table, _ANCHOR)))
        for statement in statements.values():
            self._db.execute(statement)

    def _journal_new(self, table: str, which: str, argument: str) -> None:
        cells = "".join(f', "c_{name}"' for name in self._schemas[table].types)
        values = "".join(f', "{name}"' for name in self._schemas[table].types)
        self._db.execute(
            f"INSERT INTO {after_of(table)} (row_id, at, here{cells}) "
            f'SELECT row_id, {NOW_MS}, 1{values} FROM "{table}" WHERE {which}',
            (argument,),
        )
        self._db.execute(
            f'INSERT INTO {before_of(table)} (row_id, there) SELECT row_id, 0 FROM "{table}" WHERE {which}', (argument,)
        )

    def _drop(self, table: str, event: Event) -> list[str]:
        """Drop the triggers of one kind of statement, as far as they are there; the statements that create them."""
        names = {_named(table, name) for name, (_, of) in _TRIGGERS.items() if of == event}
        found = {name: sql for name, (_, _, sql) in self._found(table).items() if name in names}
        for name in found:
            self._db.execute(f'DROP TRIGGER "{name}"')
        return list(found.values())

    def _found(self, table: str) -> dict[str, tuple[int, str, str]]:
        """A table's triggers by name: their row in `sqlite_master`, the table that they are on, and their SQL."""
        names = [_named(table, name) for name in _TRIGGERS]
        found = self._db.execute(
            "SELECT name, rowid, tbl_name, sql FROM sqlite_master "
            f"WHERE type = 'trigger' AND name IN ({', '.join('?' * len(names))})",
            names,
        )
        return {name: (place, of, sql) for name, place, of, sql in found}

    def _digest(self, table: str) -> str:
        found = sorted((name, of.lower(), sql) for name, (_, of, sql) in self._found(table).items())
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def _columns(self, table: str) -> dict[str, int]:
        return {name: key for _, name, _, _, _, key in self._db.execute(f'PRAGMA table_info("{table}")')}


def _named(table: str, trigger: str) -> str:
    return f"_lakesync_{table}_{trigger}"


def _row(types: Mapping[str, ColumnType], cells: list[SqlValue]) -> dict[str, object]:
    return {name: python_value(kind, cell) for (name, kind), cell in zip(types.items(), cells, strict=True)}


def _triggers(schema: TableSchema, anchor: int) -> dict[str, str]:
    """A table's triggers by name, as SQL.

    SQLite lets the conflict clause of the statement that fires a trigger override those inside it, but not ON CONFLICT.
    A row as it is now is read from the table, not from NEW: a trigger of the app may have changed it meanwhile.

    Args:
        anchor: the row of the anchor trigger in `sqlite_master`. VACUUM may give it another one; then it is searched.
    """
    table, before, after = schema.table, before_of(schema.table), after_of(schema.table)
    names = [column.name for column in schema.columns]
    cells = "".join(f', "c_{name}"' for name in names)
    here = "".join(f', "{name}"' for name in names)
    old = "".join(f', OLD."{name}"' for name in names)
    excluded = "".join(f', "c_{name}" = excluded."c_{name}"' for name in names)
    at_anchor = f"name = '{_named(table, _ANCHOR)}' AND tbl_name = '{table}' COLLATE NOCASE"
    heard = (
        "NOT EXISTS (SELECT 1 FROM _lakesync_quiet) AND "  # LakeSync itself writes
        f"(EXISTS (SELECT 1 FROM sqlite_master WHERE rowid = {anchor} AND {at_anchor}) "  # else the table was renamed
        f"OR EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND {at_anchor}))"
    )
    once = "ON CONFLICT (row_id) DO NOTHING;"
    replaced = (
        f'INSERT INTO {before} (row_id, there{cells}) SELECT row_id, 1{here} FROM "{table}" '
        f"WHERE row_id = NEW.row_id AND {heard} {once}"
    )
    absent = f"INSERT INTO {before} (row_id, there) VALUES (NEW.row_id, 0) {once}"
    was = f"INSERT INTO {before} (row_id, there{cells}) VALUES (OLD.row_id, 1{old}) {once}"
    is_here = (
        f'INSERT INTO {after} (row_id, at, here{cells}) SELECT row_id, {NOW_MS}, 1{here} FROM "{table}" '
        f"WHERE row_id = NEW.row_id ON CONFLICT (row_id) DO UPDATE SET at = excluded.at, here = 1{excluded};"
    )
    is_gone = (
        f"INSERT INTO {after} (row_id, at, here) VALUES (OLD.row_id, {NOW_MS}, 0) "
        "ON CONFLICT (row_id) DO UPDATE SET at = excluded.at, here = 0;"
    )
    counted = f"UPDATE _lakesync_tables SET changes = changes + 1 WHERE tbl = '{table}';"
    moved = "NEW.row_id IS NOT OLD.row_id AND "
    changed = 'NEW."{0}" IS NOT OLD."{0}" AND '
    bodies = {
        "insert": (None, replaced),
        "inserted": ("", _checks(schema, "") + absent + is_here + counted),
        "move": (moved, _id_check(table) + replaced + absent),
        "moved": (moved, is_gone),
        "updated": ("", _checks(schema, changed) + was + is_here + counted),
        "deleted": ("", was + is_gone + counted),
    }
    return {
        _named(table, name): (
            f'CREATE TRIGGER "{_named(table, name)}" {_TRIGGERS[name][0]} ON "{table}" '
            f"{'' if condition is None else f'WHEN {condition}{heard} '}BEGIN {body} END"
        )
        for name, (condition, body) in bodies.items()
    }


def _id_check(table: str) -> str:
    return f"SELECT CASE WHEN {NO_ID.format('NEW.row_id')} THEN {_refused('row_id', table, TAKEN_ID)} END;"


_CASES = 200
"""Conditions of one CASE: SQLite bounds the length of a list."""


def _refused(name: str, table: str, takes: str) -> str:
    what = name if name == "row_id" else f"column {name}"
    return f"RAISE(ABORT, 'lakesync: {what} of {table} takes {takes}')"


def _checks(schema: TableSchema, if_changed: str) -> str:
    table = schema.table
    cases = [] if if_changed else [f"WHEN {NO_ID.format('NEW.row_id')} THEN {_refused('row_id', table, TAKEN_ID)}"]
    for column in schema.columns:
        bad, good = MISFITS[column.type]
        condition = if_changed.format(column.name) + f"({bad})".format(f'NEW."{column.name}"')
        cases.append(f"WHEN {condition} THEN {_refused(column.name, table, good)}")
    lots = [cases[start : start + _CASES] for start in range(0, len(cases), _CASES)]
    return "".join(f"SELECT CASE {' '.join(lot)} END;" for lot in lots)
