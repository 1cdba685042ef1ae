"""An app's tables in SQLite, and beside them what the gateway is known to have of their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from lakesync.client.core.records import UNSWEPT, KnownRow
from lakesync.client.own_tables import defaults, is_strict
from lakesync.client.page_lots import Kept
from lakesync.client.sql_values import DECLARED, STRICT, SqlValue, fits, from_sql, to_sql
from lakesync.client.stamps import Names, Record, Stamps, known_of, stamps_of
from lakesync.client.tracking import before_of
from lakesync.model.errors import IntegrityError
from lakesync.model.merge import LiveDelta, RowState, decode_state, encode_state
from lakesync.model.schema import ColumnType, TableSchema
from lakesync.model.types import RowKey

AMONG = "(SELECT value FROM json_each(?))"
"""What a row id is looked for in: a parameter made by `id_list`."""

_WITHOUT_SCHEMA = """CREATE TABLE IF NOT EXISTS _lakesync_known (
    tbl TEXT NOT NULL, row_id TEXT NOT NULL, generation INTEGER NOT NULL,
    stamps BLOB, whole BLOB, PRIMARY KEY (tbl, row_id)) WITHOUT ROWID"""
"""What is known of rows whose tables have no schema, and, in files of before, of all rows."""
_KNOWN = """CREATE TABLE IF NOT EXISTS {} (
    row_id TEXT PRIMARY KEY NOT NULL, generation INTEGER NOT NULL, stamps BLOB, whole BLOB) WITHOUT ROWID"""
_COLUMNS = "row_id, generation, stamps, whole"

_Stored = tuple[int, Record | None, bytes | None]
_encode = msgspec.json.Encoder().encode


def by_table(keys: Iterable[RowKey]) -> dict[str, list[str]]:
    """The row ids of each table."""
    found: dict[str, list[str]] = {}
    for table, row_id in keys:
        found.setdefault(table, []).append(row_id)
    return found


def id_list(row_ids: Collection[str]) -> str:
    """A parameter for `AMONG`."""
    return _encode(list(row_ids)).decode()


class _Place(NamedTuple):
    """Where it is kept what is known of a table's rows."""

    name: str
    key: tuple[str, ...] = ()
    """What stands before the row's id in its key."""

    @property
    def rows(self) -> str:
        """For what follows FROM: which of its rows, up to their ids."""
        return f"{self.name} WHERE {'tbl = ? AND ' * len(self.key)}row_id"


class SqliteRows:
    """Of a settled row only stamps are kept; rows with edits, and rows that their table cannot hold, are kept whole."""

    def __init__(self, db: sqlite3.Connection, names: Names) -> None:
        self._db = db
        self._names = names
        self._types: dict[str, dict[str, ColumnType]] = {}
        self.filled: set[str] = set()
        """Tables in which SQLite fills in columns that an INSERT leaves out: theirs must name them all."""

    def make(self) -> None:
        """Create what is kept beside the app's tables."""
        self._db.execute(_WITHOUT_SCHEMA)

    def make_table(self, schema: TableSchema) -> list[RowKey]:
        """Create a table, or add the columns that it lacks; rows that were kept for the day when it has them."""
        table, types = schema.table, schema.types
        self._db.execute(_KNOWN.format(known_of(table)))
        of = "FROM _lakesync_known WHERE tbl = ?"
        self._db.execute(f"INSERT OR REPLACE INTO {known_of(table)} SELECT {_COLUMNS} {of} ORDER BY row_id", (table,))
        self._db.execute(f"DELETE {of}", (table,))
        columns = "".join(f', "{name}" {DECLARED[kind]}' for name, kind in types.items())
        self._db.execute(f'CREATE TABLE IF NOT EXISTS "{table}" (row_id TEXT PRIMARY KEY NOT NULL{columns})')
        there = {name.lower() for _, name, *_ in self._db.execute(f'PRAGMA table_info("{table}")')}
        missing = [name for name in types if name.lower() not in there]
        declared = STRICT if missing and is_strict(self._db, table) else DECLARED
        for name in missing:
            self._db.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}" {declared[types[name]]}')
        if defaults(self._db, schema):
            self.filled.add(table)
        grown = self._types.get(table) != types
        self._types[table] = types
        statement = f"SELECT ?, row_id FROM {known_of(table)} WHERE whole IS NOT NULL"
        return self._db.execute(statement, (table,)).fetchall() if grown else []

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """What the gateway is known to have.

        Raises:
            IntegrityError: a settled row is not in the app's table.
        """
        found: dict[RowKey, KnownRow] = {}
        for table, row_ids in by_table(keys).items():
            settled: list[tuple[str, int, Record]] = []
            place = self._place(table)
            statement = f"SELECT {_COLUMNS} FROM {place.rows} IN {AMONG}"
            for row_id, generation, stamps, whole in self._db.execute(statement, (*place.key, id_list(row_ids))):
                if whole is None:
                    settled.append((row_id, generation, stamps))
                else:
                    found[table, row_id] = KnownRow(decode_state(whole), generation)
            values = self._values(table, [row_id for row_id, _, _ in settled])
            for row_id, generation, stamps in settled:
                if row_id not in values:
                    raise IntegrityError(f"row {row_id!r} of table {table!r} was deleted past LakeSync: sync it anew")
                found[table, row_id] = KnownRow(_state(self._names.stamps(stamps), values[row_id]), generation)
        return found

    def kept(self, table: str, row_ids: Collection[str]) -> Kept:
        """What is kept of rows, in the order of their ids."""
        statement = (
            "SELECT asked.key, generation, stamps FROM json_each(?) AS asked "
            f"CROSS JOIN {known_of(table)} ON row_id = asked.value"
        )
        generations: list[int | None] = [None] * len(row_ids)
        records: list[Record | None] = [None] * len(row_ids)
        for place, generation, stamps in self._db.execute(statement, (id_list(row_ids),)):
            generations[place], records[place] = generation, stamps
        return Kept(generations, records)

    def older_than(self, generation: int) -> list[RowKey]:
        """Known rows of older generations."""
        rows = [
            "tbl, row_id FROM _lakesync_known",
            *(f"'{name}', row_id FROM {known_of(name)}" for name in self._types),
        ]
        queries = [f"SELECT {of} WHERE generation > ? AND generation < ?" for of in rows]
        return [key for query in queries for key in self._db.execute(query, (UNSWEPT, generation))]

    def unsettle(self, keys: Collection[RowKey]) -> None:
        """Keep rows whole, before an edit changes the values in the app's table."""
        rows = self.known(keys)
        self._write({key: (row.generation, None, encode_state(row.state)) for key, row in rows.items()})

    def put_known(self, known: Mapping[RowKey, KnownRow | None], edited: Collection[RowKey]) -> None:
        """Keep what the gateway is known to have; the app's rows are written already."""
        for table, row_ids in by_table(key for key, row in known.items() if row is None).items():
            place = self._place(table)
            self._db.executemany(f"DELETE FROM {place.rows} = ?", [(*place.key, row_id) for row_id in row_ids])
        self._write({key: self._stored(key, row, key not in edited) for key, row in known.items() if row is not None})

    def put(self, rows: Mapping[RowKey, Mapping[str, Raw] | None]) -> None:
        """Write the app's rows; those of tables without a schema have no place."""
        for table, row_ids in by_table(rows).items():
            types = self._types.get(table)
            if types is None:
                continue
            there: list[list[SqlValue]] = []
            gone: list[tuple[str]] = []
            for row_id in row_ids:
                values = rows[table, row_id]
                if values is None:
                    gone.append((row_id,))
                else:
                    cells = [to_sql(kind, values[name]) if name in values else None for name, kind in types.items()]
                    there.append([row_id, *cells])
            self._db.executemany(f'DELETE FROM "{table}" WHERE row_id = ?', gone)
            names = ["row_id", *(f'"{name}"' for name in types)]
            updates = ", ".join(f"{name} = excluded.{name}" for name in names)
            self._db.executemany(
                f'INSERT INTO "{table}" ({", ".join(names)}) VALUES ({", ".join("?" * len(names))}) '
                f"ON CONFLICT (row_id) DO UPDATE SET {updates}",
                there,
            )

    def copy_from(self, pile: str, table: str, generation: int) -> int:
        """Take over rows from a pile, but those that have edits here; how many rows."""
        columns = [f'"{name}"' for name in self._types[table]]
        names = ", ".join(["row_id", *columns])
        edited = "SELECT row_id FROM _lakesync_edits WHERE tbl = ?"
        of = (table,) if self._db.execute(f"{edited} LIMIT 1", (table,)).fetchone() else ()
        rows = f"FROM {pile} WHERE {f'row_id NOT IN ({edited})' if of else 'true'} ORDER BY row_id"
        there = self._db.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone() is not None
        updates = ", ".join(f"{name} = excluded.{name}" for name in ["row_id", *columns])
        instead = f" ON CONFLICT (row_id) DO UPDATE SET {updates}" if there else ""
        copied = self._db.execute(f'INSERT INTO "{table}" ({names}) SELECT {names} {rows}{instead}', of)
        self._db.execute(
            f"INSERT OR REPLACE INTO {known_of(table)} ({_COLUMNS}) SELECT row_id, ?, stamps, NULL {rows}",
            (generation, *of),
        )
        return copied.rowcount

    def forget_missing(self, table: str) -> None:
        """Forget settled rows that are not in their table."""
        absent = " ".join(f"AND row_id NOT IN (SELECT row_id FROM {of})" for of in (f'"{table}"', before_of(table)))
        self._db.execute(f"DELETE FROM {known_of(table)} WHERE whole IS NULL {absent}")

    def _values(self, table: str, row_ids: Collection[str]) -> dict[str, dict[str, Raw]]:
        """The values of settled rows: as they were, where the app wrote to them since they were last looked at."""
        if not row_ids:
            return {}
        types = self._types[table]
        statement = f'SELECT row_id{"".join(f", {chr(34)}{name}{chr(34)}" for name in types)} FROM "{table}"'
        ids = (id_list(row_ids),)
        found = self._db.execute(f"{statement} WHERE row_id IN {AMONG}", ids).fetchall()
        if self._db.execute(f"SELECT 1 FROM {before_of(table)} LIMIT 1").fetchone() is not None:
            kept = "".join(f', "c_{name}"' for name in types)
            before = f"SELECT row_id{kept} FROM {before_of(table)} WHERE there AND row_id IN {AMONG}"
            found += self._db.execute(before, ids)
        return {
            row_id: {name: from_sql(kind, cell) for (name, kind), cell in zip(types.items(), cells, strict=True)}
            for row_id, *cells in found
        }

    def _stored(self, key: RowKey, row: KnownRow, settled: bool) -> _Stored:
        state = row.state
        if not settled or not self._holds(key[0], state):
            return row.generation, None, encode_state(state)
        return row.generation, self._names.record(stamps_of(state)), None

    def _holds(self, table: str, state: RowState) -> bool:
        """Whether the app's table holds the row, and every value as it is."""
        types = self._types.get(table)
        if types is None or not state.visible:
            return False
        cells = [cell for part in state.live for cell in part.columns.items()]
        return all(column in types and fits(types[column], value) for column, value in cells)

    def _write(self, rows: Mapping[RowKey, _Stored]) -> None:
        for table, row_ids in by_table(rows).items():
            place = self._place(table)
            self._db.executemany(
                f"INSERT OR REPLACE INTO {place.name} VALUES ({'?, ' * len(place.key)}?, ?, ?, ?)",
                [(*place.key, row_id, *rows[table, row_id]) for row_id in row_ids],
            )

    def _place(self, table: str) -> _Place:
        return _Place(known_of(table)) if table in self._types else _Place("_lakesync_known", (table,))


def _state(stamps: Stamps, values: dict[str, Raw]) -> RowState:
    live = [
        LiveDelta(hlc, client_id, "", {column: values[column] for column in columns}, len(columns))
        for hlc, client_id, columns in stamps.parts
    ]
    return RowState(live, stamps.tombstone, stamps.inserted)
