"""A client's durable state in the app's own SQLite database, committed together with the app's rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from lakesync.client import bulk_page, page_lots, pile
from lakesync.client.bulk_page import BulkChanges
from lakesync.client.core.records import Changes, Edit, EditStatus, KnownRow, Position
from lakesync.client.core.rows import seen
from lakesync.client.errors import TableError
from lakesync.client.growing import fill, new_columns, own_columns, take_over
from lakesync.client.own_tables import (
    check_names,
    check_new_rows,
    check_table,
    check_triggers,
    lost_columns,
    mend_table,
)
from lakesync.client.queues import QueueLink
from lakesync.client.schemas import grown
from lakesync.client.sqlite_rows import AMONG, SqliteRows, by_table, id_list
from lakesync.client.stamps import Names
from lakesync.client.tracking import Tracking
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta, RowKey
from lakesync.wire.json import decode_deltas, encode_deltas

_TABLES = (
    """CREATE TABLE IF NOT EXISTS _lakesync_position (
        id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS _lakesync_edits (
        number INTEGER PRIMARY KEY, tbl TEXT NOT NULL, row_id TEXT NOT NULL, status TEXT NOT NULL,
        delta BLOB NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS _lakesync_edits_of ON _lakesync_edits (tbl, row_id)",
    "CREATE INDEX IF NOT EXISTS _lakesync_edits_by ON _lakesync_edits (status, number)",
)

_SCHEMA = "SELECT version, schema FROM _lakesync_tables WHERE tbl = ?"
_encode = msgspec.json.Encoder().encode
_decode_schema = msgspec.json.Decoder(TableSchema).decode
_decode_position = msgspec.json.Decoder(Position).decode


def stored_position(db: sqlite3.Connection) -> Position:
    """Whose database this is, and where it stands; as at the very beginning where it is nobody's yet."""
    there = db.execute("SELECT 1 FROM sqlite_master WHERE name = '_lakesync_position'").fetchone()
    found = there and db.execute("SELECT value FROM _lakesync_position").fetchone()
    return _decode_position(found[0]) if found else Position()


def stored_schemas(db: sqlite3.Connection) -> list[TableSchema]:
    """The schemas of the tables that a database synchronises; none where nobody has opened it yet."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = '_lakesync_tables'").fetchone() is None:
        return []
    return [_decode_schema(schema) for (schema,) in db.execute("SELECT schema FROM _lakesync_tables ORDER BY tbl")]


class SqliteClientStore:
    """Implements `ClientStore`. An app's table has the row's id in `row_id` and a column for each of its schema's.

    Rows of tables without a schema are kept for the day when they have one. What the app writes by itself, on any
    connection, is in `tracking` until it is recorded. Use it from one thread at a time.
    """

    fewest = 20
    """Deltas of a page below which it is merged row by row."""

    def __init__(self, connection: sqlite3.Connection, schemas: Iterable[TableSchema]) -> None:
        """Make what is missing. A table that was synchronised once stays so, named or not, until it is dropped.

        A commit joins a transaction that is open on the connection, so that edits are undone with the app's own
        changes. When that is undone with answers of the gateway in it, the core has to be made anew over the store.
        """
        self._db = connection
        self._open = False
        self.names = Names(connection, self.transaction)
        self._rows = SqliteRows(connection, self.names)
        self.schemas: dict[str, TableSchema] = {}
        self.tracking = Tracking(connection, self.schemas)
        self.link: QueueLink | None = None
        """A custom queue, which follows the edits here."""
        self._tracked_at: tuple[int] | None = None
        """At which version of the file's schema all tables had their triggers."""
        with self.transaction():
            for statement in _TABLES:
                self._db.execute(statement)
            self.names.make()
            self._rows.make()
            self.tracking.make_tables()
            given = list(schemas)
            names = {schema.table for schema in given}
            stored = [schema for schema in stored_schemas(self._db) if schema.table not in names]
            self.add_schemas([schema for schema in stored if self._serves(schema)])
            self.add_schemas(given)

    def add_schemas(self, schemas: Iterable[TableSchema]) -> None:
        """Make tables and track them, or add the columns that they lack; a column that was ever there stays.

        Raises:
            SchemaError: a change is not additive.
            ConfigurationError: the app's own table of that name cannot be used.
        """
        with self.transaction():
            for given in schemas:
                check_names(given, self.schemas)
                found = self._db.execute(_SCHEMA, (given.table,)).fetchone()
                if found is None:
                    check_table(self._db, given)
                    self._put_schema(given, 0, new=True)
                    continue
                kept = _decode_schema(found[1])
                schema = grown(kept, given)
                remade = bool(lost_columns(self._db, kept)) or not self.tracking.intact(kept.table)
                if remade:
                    mend_table(self._db, schema)
                check_table(self._db, schema)
                self._put_schema(schema, found[0], before=kept, remade=remade)
            check_triggers(self._db, self.schemas)

    def remade(self) -> list[str]:
        """Tables that were dropped, remade or renamed, are tracked again, and are not yet filled by the gateway."""
        found = self._db.execute("SELECT tbl FROM _lakesync_tables WHERE remade")
        return [table for (table,) in found if table in self.schemas]

    def refilled(self) -> None:
        """Note that remade tables have the app's changes, and that everything else is asked for anew."""
        self._db.execute("UPDATE _lakesync_tables SET remade = 0 WHERE remade")

    def track_again(self) -> bool:
        """Track tables again that were remade; whether there were any.

        Raises:
            ConfigurationError: a table cannot be used as it is now.
        """
        schemas = [schema for schema in self.schemas.values() if not self.tracking.intact(schema.table)]
        self.add_schemas(schemas)
        return bool(schemas)

    def adopt(self) -> None:
        """Take rows that nobody knows for new ones.

        Raises:
            ConfigurationError: one of them can never be sent.
        """
        for schema in self.schemas.values():
            check_new_rows(self._db, schema)
            self.tracking.adopt(schema.table)

    def check_tracked(self) -> bool:
        """Refuse to go on where writes would be missed; whether another client tracks a remade table again.

        Raises:
            TableError: somebody has made a table anew, and its triggers went with the old one.
        """
        version = self._db.execute("PRAGMA schema_version").fetchone()
        if version == self._tracked_at:
            return False
        self._check_intact(self.schemas)
        self._tracked_at = version
        return bool(self.remade())

    def _check_intact(self, tables: Iterable[str]) -> None:
        for table in tables:
            if not self.tracking.intact(table):
                raise TableError(
                    f"table {table!r} was dropped, remade or altered meanwhile, and what is written to it is no longer "
                    "tracked: close the database and open it again, which mends it"
                )

    def version(self, table: str) -> int:
        """The gateway's version of the schema that a table has; 0 where it is the app's own."""
        return int(self._db.execute(_SCHEMA, (table,)).fetchone()[0])

    def put_version(self, schema: TableSchema, version: int) -> None:
        """A table has the gateway's schema of this version from now on, and keeps what columns it has besides.

        Raises:
            SchemaError: the change is not additive.
        """
        check_names(schema, self.schemas)
        with self.transaction():
            before = self.schemas[schema.table]
            self._put_schema(grown(before, schema), version, before=before)

    def _put_schema(
        self,
        schema: TableSchema,
        version: int,
        *,
        before: TableSchema | None = None,
        new: bool = False,
        remade: bool = False,
    ) -> None:
        """Have a table as its schema says.

        Args:
            before: what it was synchronised with until now.
            new: it is synchronised for the first time. Rows that it has are new ones.
            remade: it was dropped, remade or renamed. Rows that only this client has are new ones, all others are as
                the gateway and the changes that wait have them.
        """
        self.schemas[schema.table] = schema
        added = new_columns(before, schema)
        own = own_columns(self._db, schema, added) if before is not None else {}
        waiting = self._rows.make_table(schema)
        if new or remade or own:
            check_new_rows(self._db, schema)
        self._db.execute(
            "INSERT INTO _lakesync_tables (tbl, version, schema, remade) VALUES (?, ?, ?, ?) ON CONFLICT (tbl) DO "
            "UPDATE SET version = excluded.version, schema = excluded.schema, remade = remade OR excluded.remade",
            (schema.table, version, _encode(schema), remade),
        )
        self.tracking.make(schema)
        if new or remade:
            self.tracking.adopt(schema.table)
        if remade:
            self.tracking.adopt_deleted(schema.table, self._deleted(schema.table))
        edits = self.edits_of(waiting)
        rows = self._rows.known(waiting)
        shown = {key: seen(row.state, edits.get(key, ())) for key, row in rows.items()}
        with self.tracking.quiet():
            if own:
                take_over(self._db, schema, own, shown)
            written = self.tracking.among_touched(schema.table, shown)
            fill(self._db, schema, added, {key: shown.pop(key) for key in written})
        self.commit(Changes(known={key: rows[key] for key in shown}, rows=dict(shown)))

    def _serves(self, schema: TableSchema) -> bool:
        """Whether a table that the app names no more is there, and can be kept in step."""
        if self.tracking.intact(schema.table):
            return True
        there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
        if self._db.execute(there, (schema.table,)).fetchone() is None:
            return False
        try:
            check_table(self._db, schema)
            check_new_rows(self._db, schema)
        except ConfigurationError:
            return False
        return not lost_columns(self._db, schema)

    def _deleted(self, table: str) -> list[str]:
        """Rows of a table that the app has deleted, as far as the gateway does not know."""
        keys = [key for key in self.edited() if key[0] == table]
        known = self.known(keys)
        return [
            row_id
            for (_, row_id), edits in self.edits_of(keys).items()
            if seen(row.state if (row := known.get((table, row_id))) else None, edits) is None
        ]

    def forget_missing(self) -> None:
        """Forget settled rows that are not in their tables.

        Raises:
            TableError: as `check_tracked`. The app may be about to fill a table that it has made anew, and rows that
                are forgotten would be taken for new ones.
        """
        self.check_tracked()
        for table in self.schemas:
            self._rows.forget_missing(table)

    def position(self) -> Position:
        """Where the client stands."""
        found = self._db.execute("SELECT value FROM _lakesync_position").fetchone()
        return Position() if found is None else _decode_position(found[0])

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """What the gateway is known to have of these rows.

        Raises:
            IntegrityError: a row was deleted from the app's table past LakeSync.
        """
        return self._rows.known(keys)

    def older_than(self, generation: int) -> list[RowKey]:
        """Known rows of older generations."""
        return self._rows.older_than(generation)

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        """Edits, by number."""
        if self.link is not None and status == "waiting" and limit is not None:
            return self._chosen(self.link, limit)
        which = "" if status is None else "WHERE status = ?"
        arguments = [*([] if status is None else [status]), -1 if limit is None else limit]
        return [edit for _, edit in self._edits(f"{which} ORDER BY number LIMIT ?", arguments)]

    def _chosen(self, link: QueueLink, limit: int) -> list[Edit]:
        """The waiting edits that a custom queue would have sent next."""
        link.reconcile(edit for _, edit in self._edits("ORDER BY number", []))
        numbers = link.chosen(limit)
        found = self._numbered(numbers)
        return [edit for number in numbers if (edit := found.get(number)) is not None and edit.status == "waiting"]

    def _numbered(self, numbers: Iterable[int]) -> dict[int, Edit]:
        which = f"WHERE number IN {AMONG}"
        return {edit.number: edit for _, edit in self._edits(which, [_encode(list(numbers)).decode()])}

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """The edits of these rows."""
        found: dict[RowKey, list[Edit]] = {}
        if self._db.execute("SELECT 1 FROM _lakesync_edits LIMIT 1").fetchone() is None:
            return found
        for table, row_ids in by_table(keys).items():
            which = f"WHERE tbl = ? AND row_id IN {AMONG} ORDER BY number"
            for key, edit in self._edits(which, [table, id_list(row_ids)]):
                found.setdefault(key, []).append(edit)
        return found

    def prepare(self, deltas: Sequence[RowDelta], generation: int) -> tuple[BulkChanges | None, Sequence[RowDelta]]:
        """Rows without edits, of which nothing is known or a newer UPDATE is all that is said, are written at once."""
        if len(deltas) < self.fewest:
            return None, deltas
        changes = BulkChanges(generation, {table: schema.types for table, schema in self.schemas.items()})
        edited = by_table(self.edited())
        rest: list[RowDelta] = []
        for table, said in page_lots.by_table(deltas).items():
            if table in self.schemas and table not in self._rows.filled:
                rows = page_lots.by_row(said)
                kept = self._rows.kept(table, rows.keys())
                theirs = frozenset(edited.get(table, ()))
                rest += bulk_page.cut(changes, table, rows, kept, theirs, self.names)
            else:
                rest += said
        return changes, rest

    def edited(self) -> list[RowKey]:
        """The rows that have edits."""
        return self._db.execute("SELECT DISTINCT tbl, row_id FROM _lakesync_edits").fetchall()

    def copy_from(self, other: str, generation: int) -> set[str]:
        """Take over the piles of an attached database, but rows that have edits here; the tables that have any."""
        self._check_intact(self.schemas)
        with self.tracking.absent():
            tables = {
                table
                for table in self.schemas
                if self._rows.copy_from(f"{other}.{pile.name_of(table)}", table, generation)
            }
            self.tracking.changed(tables)
        return tables

    def commit(self, changes: Changes) -> None:
        """Make all of the changes durable, or none.

        Raises:
            TableError: rows are of a table that the app is remaking; nothing was changed.
            sqlite3.Error: nothing was changed.
        """
        with self.transaction(), self.tracking.quiet():
            self._check_intact(changes.tables & self.schemas.keys())
            edited = {edit.delta.key for edit in changes.edits.values() if edit is not None}
            self._rows.unsettle(edited - changes.known.keys())
            self._put_edits(changes.edits)
            if isinstance(changes.bulk, BulkChanges):
                changes.bulk.write(self._db, self.names, self.tracking)
            self._rows.put(changes.rows)
            self._rows.put_known(changes.known, self.edits_of(changes.known))
            self.tracking.changed(changes.tables)
            if changes.position is not None:
                statement = "INSERT OR REPLACE INTO _lakesync_position (id, value) VALUES (1, ?)"
                self._db.execute(statement, (_encode(changes.position),))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of what happens inside, or none.

        Within another one of these it is a part of that, which is undone as a whole: a savepoint would have SQLite copy
        every page that is written. Within a transaction of the app's own it is undone alone.
        """
        if self._open:
            yield
            return
        begin, end, undo = "BEGIN IMMEDIATE", "COMMIT", ["ROLLBACK"]
        if self._db.in_transaction:
            begin, end = "SAVEPOINT _lakesync", "RELEASE _lakesync"
            undo = ["ROLLBACK TO _lakesync", "RELEASE _lakesync"]
        self._db.execute(begin)
        self._open = True
        try:
            yield
            self._db.execute(end)
        except BaseException:
            self.names.forget()
            if self.link is not None:
                self.link.undone()
            if self._db.in_transaction:  # a full disk has rolled back by itself
                for statement in undo:
                    self._db.execute(statement)
            raise
        finally:
            self._open = False
        if self.link is not None:
            self.link.committed()

    def _edits(self, which: str, arguments: list[Any]) -> Iterator[tuple[RowKey, Edit]]:
        statement = f"SELECT tbl, row_id, number, delta, status, code, message FROM _lakesync_edits {which}"
        for table, row_id, number, delta, status, code, message in self._db.execute(statement, arguments).fetchall():
            yield (table, row_id), Edit(number, decode_deltas(delta)[0], status, code, message)

    def _put_edits(self, edits: dict[int, Edit | None]) -> None:
        if self.link is not None and edits:
            self.link.changing(self._numbered(edits), edits)
        gone = [(number,) for number, edit in edits.items() if edit is None]
        self._db.executemany("DELETE FROM _lakesync_edits WHERE number = ?", gone)
        self._db.executemany(
            "INSERT OR REPLACE INTO _lakesync_edits (number, tbl, row_id, status, delta, code, message) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (number, *edit.delta.key, edit.status, encode_deltas((edit.delta,)), edit.code, edit.message)
                for number, edit in edits.items()
                if edit is not None
            ],
        )
