"""The app's tables, and the records of what the gateway has of their rows (`_lakesync_known_TABLE`).

`SqliteClientStore` calls it. An *edit* is a change of this client that the gateway has not acknowledged. The record of
a *settled* row, which has no edits, has only stamps: when and by which client each column was written. Its values are
in the app's table. A row with edits, or one that its table cannot store without loss, has its values in the record too
(column `whole`). The record also has the row's *generation*: the number of the full pull (all pages from the beginning)
that named the row last, or SOURCE_GENERATION for a row of a named source (a database beside the gateway's changes). The
change journal, in which triggers keep each row as it was before the app wrote it, is the other place for values: while
a row is journalled, the gateway's values of it are there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from lakesync.client.core.store import SOURCE_GENERATION, KnownRow
from lakesync.client.sqlite.page_plan import StoredRecords
from lakesync.client.sqlite.sql_values import DECLARED, STRICT_DECLARED, SqlValue, from_sql, round_trips, to_sql
from lakesync.client.sqlite.stamps import Record, StampCodec, Stamps, known_table, stamps_of
from lakesync.client.sqlite.table_validation import has_defaults, is_strict, lost_columns
from lakesync.client.sqlite.triggers import before_table
from lakesync.model.errors import IntegrityError
from lakesync.model.merge import LiveDelta, RowState, decode_state, encode_state
from lakesync.model.schema import ColumnType, TableSchema
from lakesync.model.types import RowKey, row_ids_by_table

STAGED_RECORD = "_lakesync_record"
"""The column with the records in the staging tables of a checkpoint. No synced column may have this prefix."""
LISTED_VALUES = "(SELECT value FROM temp.json_each(?))"
"""SQL for a list of ids or numbers that is one parameter, which `value_list` returns. Without `temp`, a table of the
app with that name would be read."""

_KNOWN_WITHOUT_SCHEMA = """CREATE TABLE IF NOT EXISTS _lakesync_known (
    tbl TEXT NOT NULL, row_id TEXT NOT NULL, generation INTEGER NOT NULL,
    stamps BLOB, whole BLOB, PRIMARY KEY (tbl, row_id)) WITHOUT ROWID"""
"""Records of rows whose tables have no schema here; in files of earlier versions, the records of all rows."""
_KNOWN = """CREATE TABLE IF NOT EXISTS {} (
    row_id TEXT PRIMARY KEY NOT NULL, generation INTEGER NOT NULL, stamps BLOB, whole BLOB) WITHOUT ROWID"""
"""Creates the table of records of one synced table; `{}` is its name."""
_COLUMNS = "row_id, generation, stamps, whole"
"""The columns of a record."""

_StoredRow = tuple[int, Record | None, bytes | None]
"""A record: generation; stamps, None if the row is stored whole; the whole row with values and stamps, else None."""
_encode = msgspec.json.Encoder().encode


def value_list(values: Iterable[str] | Iterable[int]) -> str:
    """Return ids or numbers as the parameter of `LISTED_VALUES`."""
    return _encode(list(values)).decode()


class _RecordTable(NamedTuple):
    """The table with the records of a synced table's rows."""

    name: str
    key: tuple[str, ...] = ()
    """The values of the key columns before the row id: none, or the synced table's name in the shared table."""

    @property
    def from_clause(self) -> str:
        """SQL after FROM, up to and including `row_id`; the caller adds the condition on it."""
        return f"{self.name} WHERE {'tbl = ? AND ' * len(self.key)}row_id"


class RowStorage:
    """Reads and writes the app's rows and their records."""

    def __init__(self, db: sqlite3.Connection, stamp_codec: StampCodec, schemas: Mapping[str, TableSchema]) -> None:
        """Use an app's database.

        Args:
            db: the app's database.
            stamp_codec: encodes and decodes the records.
            schemas: the schemas of the synced tables by name; `SqliteClientStore` adds to it.
        """
        self._db = db
        self._stamp_codec = stamp_codec
        self._schemas = schemas
        self.tables_with_defaults: set[str] = set()
        """Tables in which SQLite fills omitted columns with a DEFAULT, so that an INSERT must name every column."""

    def create_shared_tables(self) -> None:
        """Create the tables that do not belong to one synced table."""
        self._db.execute(_KNOWN_WITHOUT_SCHEMA)

    def create_table(self, schema: TableSchema) -> None:
        """Create a table and its records, or add the columns that it lacks."""
        table, types = schema.table, schema.types
        self.create_records(table)
        columns = "".join(f', "{name}" {DECLARED[kind]}' for name, kind in types.items())
        self._db.execute(f'CREATE TABLE IF NOT EXISTS "{table}" (row_id TEXT PRIMARY KEY NOT NULL{columns})')
        missing = lost_columns(self._db, schema)
        declared = STRICT_DECLARED if missing and is_strict(self._db, table) else DECLARED
        for name in missing:
            self._db.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}" {declared[types[name]]}')
        self.note_defaults(schema)

    def create_records(self, table: str) -> None:
        """Create the table of a table's records, with those that the shared table has of it."""
        self._db.execute(_KNOWN.format(known_table(table)))
        source = "FROM _lakesync_known WHERE tbl = ?"
        self._db.execute(
            f"INSERT OR REPLACE INTO {known_table(table)} SELECT {_COLUMNS} {source} ORDER BY row_id", (table,)
        )
        self._db.execute(f"DELETE {source}", (table,))

    def note_defaults(self, schema: TableSchema) -> None:
        """Note in `tables_with_defaults` whether a column of a table has a DEFAULT."""
        if has_defaults(self._db, schema):
            self.tables_with_defaults.add(schema.table)

    def rows_stored_whole(self, table: str) -> list[RowKey]:
        """Return the rows of a table whose values are in their records."""
        statement = f"SELECT ?, row_id FROM {known_table(table)} WHERE whole IS NOT NULL"
        return self._db.execute(statement, (table,)).fetchall()

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """Return rows as the gateway has them.

        Raises:
            IntegrityError: a settled row is missing from the app's table.
        """
        result: dict[RowKey, KnownRow] = {}
        for table, row_ids in row_ids_by_table(keys).items():
            settled: list[tuple[str, int, Record]] = []
            records = self._record_table(table)
            statement = f"SELECT {_COLUMNS} FROM {records.from_clause} IN {LISTED_VALUES}"
            for row_id, generation, stamps, whole in self._db.execute(statement, (*records.key, value_list(row_ids))):
                if whole is None:
                    settled.append((row_id, generation, stamps))
                else:
                    result[table, row_id] = KnownRow(decode_state(whole), generation)
            values = self._settled_values(table, [row_id for row_id, _, _ in settled])
            for row_id, generation, stamps in settled:
                if row_id not in values:
                    raise IntegrityError(
                        f"row {row_id!r} of table {table!r} was deleted without change tracking: the client must resync"
                    )
                state = _state(self._stamp_codec.decode(stamps), values[row_id])
                result[table, row_id] = KnownRow(state, generation)
        return result

    def stored_records(self, table: str, row_ids: Collection[str]) -> StoredRecords:
        """Return the stored records of a table's rows, in the order of `row_ids`.

        Args:
            table: a synced table.
            row_ids: the rows' ids.
        """
        statement = (
            "SELECT requested.key, generation, stamps "  # key: the index in the list
            "FROM temp.json_each(?) AS requested "
            f"CROSS JOIN {known_table(table)} ON row_id = requested.value"
        )
        generations: list[int | None] = [None] * len(row_ids)
        records: list[Record | None] = [None] * len(row_ids)
        for index, generation, stamps in self._db.execute(statement, (value_list(row_ids),)):
            generations[index], records[index] = generation, stamps
        return StoredRecords(generations, records)

    def older_than(self, generation: int) -> list[RowKey]:
        """Return the rows of older generations, except those of named sources. See `ClientStore.older_than`."""
        sources = [
            "tbl, row_id FROM _lakesync_known",
            *(f"'{name}', row_id FROM {known_table(name)}" for name in self._schemas),
        ]
        queries = [f"SELECT {source} WHERE generation > ? AND generation < ?" for source in sources]
        return [key for query in queries for key in self._db.execute(query, (SOURCE_GENERATION, generation))]

    def copy_settled(self, keys: Collection[RowKey]) -> None:
        """Copy the values of settled rows into their records, before an edit overwrites them in the app's table."""
        rows = self.known(keys)
        self._write({key: (row.generation, None, encode_state(row.state)) for key, row in rows.items()})

    def put_known(self, known: Mapping[RowKey, KnownRow | None], edited: Collection[RowKey]) -> None:
        """Store rows as the gateway has them, after the app's rows were written.

        Args:
            known: complete rows; None deletes the row's record.
            edited: the rows that have edits.
        """
        for table, row_ids in row_ids_by_table(key for key, row in known.items() if row is None).items():
            records = self._record_table(table)
            self._db.executemany(
                f"DELETE FROM {records.from_clause} = ?", [(*records.key, row_id) for row_id in row_ids]
            )
        types = {table: self._schemas[table].types for table in {table for table, _ in known} & self._schemas.keys()}
        self._write(
            {
                key: self._stored_row(row, None if key in edited else types.get(key[0]))
                for key, row in known.items()
                if row is not None
            }
        )

    def put(self, rows: Mapping[RowKey, Mapping[str, Raw] | None]) -> None:
        """Write the app's rows, and delete those that are None. Rows of tables without a schema are skipped."""
        for table, row_ids in row_ids_by_table(rows).items():
            if table not in self._schemas:
                continue
            types = self._schemas[table].types
            written: list[list[SqlValue]] = []
            deleted: list[tuple[str]] = []
            for row_id in row_ids:
                values = rows[table, row_id]
                if values is None:
                    deleted.append((row_id,))
                else:
                    cells = [to_sql(kind, values[name]) if name in values else None for name, kind in types.items()]
                    written.append([row_id, *cells])
            self._db.executemany(f'DELETE FROM "{table}" WHERE row_id = ?', deleted)
            names = ["row_id", *(f'"{name}"' for name in types)]
            updates = ", ".join(f"{name} = excluded.{name}" for name in names)
            self._db.executemany(
                f'INSERT INTO "{table}" AS app ({", ".join(names)}) VALUES ({", ".join("?" * len(names))}) '
                f"ON CONFLICT (row_id) DO UPDATE SET {updates}",
                written,
            )

    def copy_from(self, staging_table: str, table: str, generation: int) -> int:
        """Copy rows and records from a staging table, which has the rows of a checkpoint, except rows that have edits.

        Args:
            staging_table: the staging table's quoted name, with its database's name.
            table: the synced table.
            generation: the generation that the copied rows get.

        Returns:
            The number of copied rows.
        """
        columns = [f'"{name}"' for name in self._schemas[table].types]
        names = ", ".join(["row_id", *columns])
        edited = "SELECT row_id FROM _lakesync_edits WHERE tbl = ?"
        params = (table,) if self._db.execute(f"{edited} LIMIT 1", (table,)).fetchone() else ()
        # `staged.`, because SQLite reads a quoted name of no column as a text
        staged_names = ", ".join(["row_id", *(f"staged.{name}" for name in columns)])
        source = f"FROM {staging_table} staged WHERE {f'row_id NOT IN ({edited})' if params else 1} ORDER BY row_id"
        has_rows = self._db.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone() is not None
        updates = ", ".join(f"{name} = excluded.{name}" for name in ["row_id", *columns])
        on_conflict = f" ON CONFLICT (row_id) DO UPDATE SET {updates}" if has_rows else ""
        copied = self._db.execute(
            f'INSERT INTO "{table}" AS app ({names}) SELECT {staged_names} {source}{on_conflict}', params
        )
        self._db.execute(
            f"INSERT OR REPLACE INTO {known_table(table)} ({_COLUMNS}) "
            f"SELECT row_id, ?, {STAGED_RECORD}, NULL {source}",
            (generation, *params),
        )
        return copied.rowcount

    def forget_missing(self, table: str) -> None:
        """Delete the records of settled rows that are missing from their table and from its journal."""
        absent = " ".join(
            f"AND row_id NOT IN (SELECT row_id FROM {source})" for source in (f'"{table}"', before_table(table))
        )
        self._db.execute(f"DELETE FROM {known_table(table)} WHERE whole IS NULL {absent}")

    def _settled_values(self, table: str, row_ids: Collection[str]) -> dict[str, dict[str, Raw]]:
        """Return the values of settled rows; of journalled rows, those before the app's write."""
        if not row_ids:
            return {}
        types = self._schemas[table].types
        columns = "".join(f', "{table}"."{name}"' for name in types)
        ids = (value_list(row_ids),)
        rows = self._db.execute(
            f'SELECT row_id{columns} FROM "{table}" WHERE row_id IN {LISTED_VALUES}', ids
        ).fetchall()
        if self._db.execute(f"SELECT 1 FROM {before_table(table)} LIMIT 1").fetchone() is not None:
            columns = "".join(f', "c_{name}"' for name in types)
            before = f"SELECT row_id{columns} FROM {before_table(table)} WHERE there AND row_id IN {LISTED_VALUES}"
            rows += self._db.execute(before, ids)
        return {
            row_id: {name: from_sql(kind, cell) for (name, kind), cell in zip(types.items(), cells, strict=True)}
            for row_id, *cells in rows
        }

    def _stored_row(self, row: KnownRow, types: Mapping[str, ColumnType] | None) -> _StoredRow:
        """Return the record of a row: stamps if its table contains every value unchanged, else the whole row.

        Args:
            row: the row as the gateway has it.
            types: the table's columns; None if the row has edits, or its table no schema.
        """
        state = row.state
        if types is None or not state.visible or not _can_store(types, state.values()):
            return row.generation, None, encode_state(state)
        return row.generation, self._stamp_codec.encode(stamps_of(state)), None

    def _write(self, rows: Mapping[RowKey, _StoredRow]) -> None:
        """Insert or replace records."""
        for table, row_ids in row_ids_by_table(rows).items():
            records = self._record_table(table)
            self._db.executemany(
                f"INSERT OR REPLACE INTO {records.name} VALUES ({'?, ' * len(records.key)}?, ?, ?, ?)",
                [(*records.key, row_id, *rows[table, row_id]) for row_id in row_ids],
            )

    def _record_table(self, table: str) -> _RecordTable:
        """Return the table with the records of a synced table's rows. Tables without a schema share one."""
        has_schema = table in self._schemas
        return _RecordTable(known_table(table)) if has_schema else _RecordTable("_lakesync_known", (table,))


def _can_store(types: Mapping[str, ColumnType], values: Mapping[str, Raw]) -> bool:
    """Return whether columns of these types can store all values without loss."""
    return all(column in types and round_trips(types[column], value) for column, value in values.items())


def _state(stamps: Stamps, values: dict[str, Raw]) -> RowState:
    """Return the state of a settled row, from its record and its values in the app's table. It has no delta ids."""
    live = [
        LiveDelta(hlc, client_id, "", {column: values[column] for column in columns}, len(columns))
        for hlc, client_id, columns in stamps.parts
    ]
    return RowState.of(live, stamps.tombstone, stamps.inserted)
