"""A client's durable state in the app's own SQLite file, committed together with the app's rows.

The *core*, a state machine without I/O in `lakesync.client.core`, decides what to store; `Replica` passes the store to
it. The state is: the client's *edits*, which are changes that the gateway has not acknowledged; its *position*, which
is the gateway's cursor up to which it has pulled, with clocks and counters; the schemas of the synced tables; and a
*record* of each row that the gateway has. Pages from the gateway contain *deltas*, which are changes of rows. Records
are needed to merge them: each has the row's *stamps*, which say when, and by which client, each column was written. A
row is *settled* if it has no edits: then its values are only in the app's table. Otherwise, the record also has the
values that the gateway has.

Triggers on the app's tables write each change of the app into a journal. They also count the changes of each table, for
*watches*, which are the app's live queries. A *recreated* table (`remade` in the file) is one that the app has dropped,
recreated or renamed, so that it lost its triggers. A *generation* is the number of a full pull of all rows; rows of an
older one were not in it. A *resync* is a full pull that keeps the edits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from lakesync.client.core.rows import visible_row
from lakesync.client.core.store import Changes, Edit, EditStatus, KnownRow, Position
from lakesync.client.errors import TableError
from lakesync.client.sqlite.bulk_changes import BulkChanges
from lakesync.client.sqlite.change_tracking import ChangeTracking
from lakesync.client.sqlite.column_adoption import (
    existing_columns,
    fill_journalled_rows,
    journal_existing_values,
    merge_schemas,
)
from lakesync.client.sqlite.edit_table import EditTable
from lakesync.client.sqlite.page_plan import deltas_by_row, deltas_by_table
from lakesync.client.sqlite.row_storage import RowStorage
from lakesync.client.sqlite.stamps import StampCodec
from lakesync.client.sqlite.table_validation import (
    check_existing_rows,
    check_existing_values,
    check_names,
    check_table,
    check_text_columns,
    check_triggers,
    lost_columns,
    repair_table,
)
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import TableSchema
from lakesync.model.types import RowDelta, RowKey, row_ids_by_table

_POSITION = """CREATE TABLE IF NOT EXISTS _lakesync_position (
    id INTEGER PRIMARY KEY CHECK (id = 1), value BLOB NOT NULL)"""
"""Creates the table of the position, which has one row."""

_SELECT_SCHEMA = "SELECT version, schema FROM _lakesync_tables WHERE tbl = ?"
_encode = msgspec.json.Encoder().encode
_decode_schema = msgspec.json.Decoder(TableSchema).decode
_decode_position = msgspec.json.Decoder(Position).decode


def stored_position(db: sqlite3.Connection) -> Position:
    """Return the position in a database; `Position()` if no client has opened it."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = '_lakesync_position'").fetchone() is None:
        return Position()
    row = db.execute("SELECT value FROM _lakesync_position").fetchone()
    return _decode_position(row[0]) if row is not None else Position()


def stored_schemas(db: sqlite3.Connection) -> list[TableSchema]:
    """Return the schemas of a database's synced tables; an empty list if no client has opened it."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = '_lakesync_tables'").fetchone() is None:
        return []
    return [_decode_schema(schema) for (schema,) in db.execute("SELECT schema FROM _lakesync_tables ORDER BY tbl")]


class SqliteClientStore:
    """Implements `core.store.ClientStore`. An app's table has `row_id` and a column for each one of its schema.

    The core calls the methods of that protocol. `Replica` and `SchemaSynchroniser` call those for schemas and tables.

    Rows of tables without a schema are kept until their table has one. Writes of the app, on any connection, are in
    the change journal of `tracking` until the core records them as edits. Use the store from one thread at a time.
    """

    bulk_from = 20
    """A page with fewer deltas than this is merged row by row; a larger one is written in bulk."""

    def __init__(self, connection: sqlite3.Connection, schemas: Iterable[TableSchema]) -> None:
        """Create the tables that are missing, and track the app's tables.

        A table of an earlier run stays synchronised, even if `schemas` no longer names it, while it exists and can be
        synchronised; otherwise it is left out.

        A commit joins a transaction that is open on the connection, so that edits are rolled back together with the
        app's changes. If that rollback undoes responses of the gateway, create a new core over the store.

        Args:
            connection: a connection to the app's database in autocommit mode.
            schemas: schemas of the synced tables, in addition to those stored in the file.

        Raises:
            ConfigurationError: a table of the app cannot be synchronised.
            SchemaError: a schema is wrong, or changes a column's type.
        """
        self._db = connection
        self._in_transaction = False
        """Whether `transaction` is running."""
        self.stamp_codec = StampCodec(connection, self.transaction)
        """Encodes and decodes the stamps in records."""
        self.schemas: dict[str, TableSchema] = {}
        """The schemas of the synced tables, by table."""
        self._rows = RowStorage(connection, self.stamp_codec, self.schemas)
        self._replaced_schemas: dict[str, TableSchema | None] = {}
        """The schemas before the transaction in progress, of the tables that it has changed; None for a new table."""
        self.tracking = ChangeTracking(connection, self.schemas)
        self.edit_table = EditTable(connection)
        self._checked_schema_version: tuple[int] | None = None
        """SQLite's `schema_version` of the file at which all tables had their triggers; None if it is unknown."""
        self._read_schema_version: tuple[int] | None = None
        """SQLite's `schema_version` of the file at which `schemas` was as stored; None if it is unknown."""
        with self.transaction():
            self._db.execute(_POSITION)
            self.edit_table.create()
            self.stamp_codec.create_table()
            self._rows.create_shared_tables()
            self.tracking.create_shared_tables()
            declared = list(schemas)
            names = {schema.table for schema in declared}
            stored = [schema for schema in stored_schemas(self._db) if schema.table not in names]
            self.add_schemas([schema for schema in stored if self._is_usable(schema)])
            self.add_schemas(declared)

    @property
    def committed_schemas(self) -> dict[str, TableSchema]:
        """The schemas of the tables as other connections see them, without changes of the transaction in progress.

        Any thread may read it.
        """
        schemas = {**self.schemas, **self._replaced_schemas}
        return {table: schema for table, schema in schemas.items() if schema is not None}

    def add_schemas(self, schemas: Iterable[TableSchema]) -> None:
        """Create tables and track them, or add the columns that they lack. No column is ever removed.

        Raises:
            SchemaError: a schema is wrong, or changes a column's type.
            ConfigurationError: the app's own table of that name cannot be synchronised.
        """
        with self.transaction():
            for declared in schemas:
                check_names(declared, self.schemas)
                stored_row = self._db.execute(_SELECT_SCHEMA, (declared.table,)).fetchone()
                if stored_row is None:
                    check_table(self._db, declared)
                    check_text_columns(self._db, declared)
                    self._put_schema(declared, 0, before=None)
                    continue
                stored = _decode_schema(stored_row[1])
                schema = merge_schemas(stored, declared)
                recreated = bool(lost_columns(self._db, stored)) or not self.tracking.is_intact(stored.table)
                if recreated:
                    repair_table(self._db, schema)
                check_table(self._db, schema)
                self._put_schema(schema, stored_row[0], before=stored, recreated=recreated)
            check_triggers(self._db, self.schemas)

    def reload_schemas(self) -> None:
        """Read the stored schemas again, if they may differ. Call it at the beginning of a transaction.

        Another client of the file may have added columns. With an old schema, this client would remove rows from the
        journal without the values of these columns. It may also have added a table: this client then synchronises it
        too. Otherwise rows of later pages would stay outside of the table, and the other client would not know them.
        """
        version = self._db.execute("PRAGMA schema_version").fetchone()
        if version != self._read_schema_version:
            for schema in stored_schemas(self._db):
                if schema.table in self.schemas or self.tracking.is_intact(schema.table):
                    self.schemas[schema.table] = schema
                    self._rows.note_defaults(schema)
            self._read_schema_version = version

    def recreated_tables(self) -> list[str]:
        """Return recreated tables whose rows were not written again yet."""
        recreated = self._db.execute("SELECT tbl FROM _lakesync_tables WHERE remade")
        return [table for (table,) in recreated if table in self.schemas]

    def clear_recreated(self) -> None:
        """Unmark recreated tables: their rows with edits are written again, and a resync will fetch the others."""
        self._db.execute("UPDATE _lakesync_tables SET remade = 0 WHERE remade")

    def track_recreated_tables(self) -> bool:
        """Track tables again that the app has recreated; return whether there were any.

        Raises:
            ConfigurationError: a table cannot be synchronised in its current form.
        """
        schemas = [schema for schema in self.schemas.values() if not self.tracking.is_intact(schema.table)]
        self.add_schemas(schemas)
        return bool(schemas)

    def journal_unknown_rows(self) -> None:
        """Journal rows as inserted that neither the gateway nor an edit knows.

        Raises:
            ConfigurationError: the gateway would reject one of these rows.
        """
        for schema in self.schemas.values():
            check_existing_rows(self._db, schema)
            self.tracking.journal_unknown_rows(schema.table)

    def has_recreated_tables_after_schema_change(self) -> bool:
        """Return whether any table is marked as recreated; False, without a look, if the file's schema is unchanged.

        It is compared with that of the last call. Another client of the file may have marked it, and given it new
        triggers. Its rows must be pulled again then.

        Raises:
            TableError: the app has recreated a table, and its triggers were dropped with the old one.
        """
        version = self._db.execute("PRAGMA schema_version").fetchone()
        if version == self._checked_schema_version:
            return False
        self._check_intact(self.schemas)
        self._checked_schema_version = version
        return bool(self.recreated_tables())

    def version(self, table: str) -> int:
        """Return the gateway's version of a table's schema; 0 if the app's own schema is used."""
        return int(self._db.execute(_SELECT_SCHEMA, (table,)).fetchone()[0])

    def put_gateway_schema(self, schema: TableSchema, version: int) -> None:
        """Replace a table's schema with the gateway's; further columns of the table are kept.

        Args:
            schema: the gateway's schema of the table.
            version: the version of that schema, from 1.

        Raises:
            SchemaError: the schema changes a column's type.
        """
        check_names(schema, self.schemas)
        with self.transaction():
            before = self.schemas[schema.table]
            self._put_schema(merge_schemas(before, schema), version, before=before)

    def forget_missing(self) -> None:
        """Delete the records of settled rows that are missing from their tables.

        Raises:
            TableError: a recreated table has no triggers. The app may be about to fill it, and without their records
                its rows would become inserts.
        """
        self._check_intact(self.schemas)
        for table in self.schemas:
            self._rows.forget_missing(table)

    def position(self) -> Position:
        """Return the stored position; `Position()` in a new store."""
        row = self._db.execute("SELECT value FROM _lakesync_position").fetchone()
        return Position() if row is None else _decode_position(row[0])

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """Return rows as the gateway has them. See `ClientStore.known`.

        Raises:
            IntegrityError: a settled row is missing from the app's table: the client must resync.
        """
        return self._rows.known(keys)

    def older_than(self, generation: int) -> list[RowKey]:
        """Return the rows of older generations. See `ClientStore.older_than`."""
        return self._rows.older_than(generation)

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        """Return edits in order of their numbers. See `ClientStore.edits`.

        If the app passed a queue of its own to `lakesync.open`, an object that delivers edits in its own order,
        `EditTable` asks it for the next edits to push: those with the status `waiting`, if `limit` is given.
        """
        return self.edit_table.edits(status, limit)

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """Return the edits of these rows. See `ClientStore.edits_of`."""
        return self.edit_table.edits_of(keys)

    def prepare(self, deltas: Sequence[RowDelta], generation: int) -> tuple[BulkChanges | None, Sequence[RowDelta]]:
        """Select rows that can be written in bulk. See `ClientStore.prepare`.

        A row can be written in bulk if it has no edits, and is new, or is replaced by the page, or has one UPDATE in
        the page that is newer than all its stored deltas.
        """
        if len(deltas) < self.bulk_from:
            return None, deltas
        changes = BulkChanges(generation, {table: schema.types for table, schema in self.schemas.items()})
        edited = row_ids_by_table(self.edit_table.edited_rows())
        rest: list[RowDelta] = []
        for table, table_deltas in deltas_by_table(deltas).items():
            if table in self.schemas and table not in self._rows.tables_with_defaults:
                rows = deltas_by_row(table_deltas)
                records = self._rows.stored_records(table, rows.keys())
                rest += changes.add(table, rows, records, frozenset(edited.get(table, ())), self.stamp_codec)
            else:
                rest += table_deltas
        return changes, rest

    def copy_from(self, staging_tables: Mapping[str, str], generation: int) -> set[str]:
        """Copy complete rows from staging tables, except rows that have edits. Use it within a transaction only.

        The staging tables have the rows of a checkpoint, the snapshot of all rows from which a new client starts.

        Args:
            staging_tables: the quoted name of each synced table's staging table, with the name of its database. It has
                the columns row_id, stamps (encoded by `stamp_codec`) and those of the schema.
            generation: the generation that the copied rows get.

        Returns:
            The tables into which rows were copied.
        """
        self._check_intact(self.schemas)
        with self.tracking.without_any_trigger():
            tables = {table for table in self.schemas if self._rows.copy_from(staging_tables[table], table, generation)}
            self.tracking.notify_watches(tables)
        return tables

    def commit(self, changes: Changes) -> None:
        """Store all changes in one transaction. See `ClientStore.commit`.

        Raises:
            TableError: a changed table has lost its triggers, as while the app recreates it; nothing was changed.
            sqlite3.Error: the file cannot be written; nothing was changed.
        """
        with self.transaction(), self.tracking.paused():
            self._check_intact(changes.tables & self.schemas.keys())
            edited = {edit.delta.key for edit in changes.edits.values() if edit is not None}
            self._rows.copy_settled(edited - changes.known.keys())  # before their edits overwrite the values
            self.edit_table.put(changes.edits)
            if isinstance(changes.bulk, BulkChanges):
                changes.bulk.write(self._db, self.stamp_codec, self.tracking)
            self._rows.put(changes.rows)
            self._rows.put_known(changes.known, self.edits_of(changes.known))
            self.tracking.notify_watches(changes.tables)
            if changes.position is not None:
                statement = "INSERT OR REPLACE INTO _lakesync_position (id, value) VALUES (1, ?)"
                self._db.execute(statement, (_encode(changes.position),))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction.

        Nested calls join the outer one and are rolled back with it, because SQLite would copy every page written
        after a savepoint. Within a transaction of the app, it is a savepoint and rolled back alone.
        """
        if self._in_transaction:
            yield
            return
        begin, commit, rollback = "BEGIN IMMEDIATE", "COMMIT", ["ROLLBACK"]
        if self._db.in_transaction:
            begin, commit = "SAVEPOINT _lakesync", "RELEASE _lakesync"
            rollback = ["ROLLBACK TO _lakesync", "RELEASE _lakesync"]
        self._db.execute(begin)
        self._in_transaction = True
        try:
            yield
            self._db.execute(commit)
        except BaseException:
            self.stamp_codec.clear_cache()
            self.edit_table.rolled_back()
            self._restore_schemas()
            self._checked_schema_version = self._read_schema_version = None  # others may use the same version
            if self._db.in_transaction:  # a full disk has rolled back by itself
                for statement in rollback:
                    self._db.execute(statement)
            raise
        finally:
            self._in_transaction = False
            self._replaced_schemas = {}
        self.edit_table.committed()

    def _check_intact(self, tables: Iterable[str]) -> None:
        """Raise TableError if one of some tables has lost its triggers."""
        for table in tables:
            if not self.tracking.is_intact(table):
                raise TableError(
                    f"table {table!r} was dropped, recreated or altered while it was open, so its changes are not "
                    "tracked: close the database and open it again, which repairs it"
                )

    def _put_schema(
        self,
        schema: TableSchema,
        version: int,
        *,
        before: TableSchema | None,
        recreated: bool = False,
    ) -> None:
        """Create or alter a table as its schema says, and create its triggers.

        Args:
            schema: the table's schema.
            version: the gateway's version of the schema; 0 if the app's own schema is used.
            before: the schema that the table had; None if it was not synchronised. Its rows become inserts then.
            recreated: whether the app has dropped, recreated or renamed it. Rows that neither the gateway nor an edit
                knows become inserts; a later resync fills in the others.
        """
        previous = self.schemas.get(schema.table)  # unlike `before`, None when the file is opened
        self._replaced_schemas.setdefault(schema.table, previous)
        self.schemas[schema.table] = schema
        is_new, old_types = before is None, {} if before is None else before.types
        added = [name for name in schema.types if name not in old_types]
        existing = {} if is_new else existing_columns(self._db, schema, added)  # before the table gets them
        self._rows.create_table(schema)
        if is_new or recreated:
            check_existing_rows(self._db, schema)
        if existing:
            check_existing_values(self._db, schema, existing)
        self._db.execute(
            "INSERT INTO _lakesync_tables (tbl, version, schema, remade) VALUES (?, ?, ?, ?) ON CONFLICT (tbl) DO "
            "UPDATE SET version = excluded.version, schema = excluded.schema, remade = remade OR excluded.remade",
            (schema.table, version, _encode(schema), recreated),
        )
        self.tracking.install(schema)
        if is_new or recreated:
            self.tracking.journal_unknown_rows(schema.table)
        if recreated:
            self.tracking.journal_reappeared_rows(schema.table, self._deleted_by_edits(schema.table))
        if previous is None or previous.types != schema.types:  # the table may have columns for stored values now
            self._write_gateway_values(schema, self._rows.rows_stored_whole(schema.table), added, existing)

    def _write_gateway_values(
        self, schema: TableSchema, keys: Collection[RowKey], added: list[str], existing: Mapping[str, str]
    ) -> None:
        """Write the gateway's values of rows into a table that has got the columns for them.

        Journalled rows get only the values of added columns.

        Args:
            schema: the table's new schema.
            keys: the rows whose values are in their records: those with edits, and those that did not fit the table.
            added: the added columns.
            existing: those of them that the app's table already had; the result of `existing_columns`.
        """
        edits = self.edits_of(keys)
        rows = self._rows.known(keys)
        visible = {key: visible_row(row.state, edits.get(key, ())) for key, row in rows.items()}
        with self.tracking.paused():
            if existing:
                journal_existing_values(self._db, schema, existing, visible)
            journalled = self.tracking.filter_journalled(schema.table, visible)
            fill_journalled_rows(self._db, schema, added, {key: visible.pop(key) for key in journalled})
        self.commit(Changes(known={key: rows[key] for key in visible}, rows=dict(visible)))

    def _is_usable(self, schema: TableSchema) -> bool:
        """Return whether a table that the app no longer names exists and can be synchronised.

        The checks read the table's records, which are created if they are missing.
        """
        if self.tracking.is_intact(schema.table):
            return True
        exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE"
        if self._db.execute(exists, (schema.table,)).fetchone() is None:
            return False
        self._rows.create_records(schema.table)
        try:
            check_table(self._db, schema)
            check_existing_rows(self._db, schema)
        except ConfigurationError:
            return False
        return not lost_columns(self._db, schema)

    def _deleted_by_edits(self, table: str) -> list[str]:
        """Return the ids of rows that an edit has deleted."""
        keys = [key for key in self.edit_table.edited_rows() if key[0] == table]
        known = self.known(keys)
        deleted = []
        for key, edits in self.edits_of(keys).items():
            row = known.get(key)
            if visible_row(row.state if row is not None else None, edits) is None:
                deleted.append(key[1])
        return deleted

    def _restore_schemas(self) -> None:
        """Undo the changes of schemas in memory, because their transaction is rolled back."""
        for table, schema in self._replaced_schemas.items():
            if schema is None:
                del self.schemas[table]
            else:
                self.schemas[table] = schema
