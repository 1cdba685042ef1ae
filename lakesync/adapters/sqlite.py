"""Deltas, and tables of rows beside them, in one SQLite file: for one machine, and to be looked into with any tool."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lakesync.adapters.base import (
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    Held,
    Identity,
    Position,
    StoredDelta,
    position_of,
)
from lakesync.adapters.flat import COLUMNS, FlatDelta, flat, unflat
from lakesync.adapters.selection import held, merged
from lakesync.adapters.sqlite_tables import ensure_table, write_rows
from lakesync.exceptions import AdapterError
from lakesync.hlc import wall_clock
from lakesync.lww import RowState
from lakesync.schema import TableSchema
from lakesync.types import ColumnValue

_SCHEMA = """
CREATE TABLE IF NOT EXISTS lakesync_deltas (
  gateway TEXT NOT NULL, client_id TEXT NOT NULL, hlc INTEGER NOT NULL, delta_id TEXT NOT NULL,
  arrival INTEGER NOT NULL, table_name TEXT NOT NULL, row_id TEXT NOT NULL, op TEXT NOT NULL,
  columns TEXT NOT NULL, batch_id TEXT NOT NULL,
  PRIMARY KEY (gateway, client_id, hlc, delta_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lakesync_by_arrival ON lakesync_deltas (arrival, hlc, client_id, delta_id, gateway);
CREATE INDEX IF NOT EXISTS lakesync_by_hlc ON lakesync_deltas (hlc, client_id, delta_id, gateway);
CREATE INDEX IF NOT EXISTS lakesync_by_row ON lakesync_deltas (table_name, row_id);
"""
_COLUMNS = ", ".join(COLUMNS)
_INSERT = f"INSERT OR IGNORE INTO lakesync_deltas ({_COLUMNS}, batch_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ONE = f"SELECT {_COLUMNS} FROM lakesync_deltas WHERE gateway = ? AND client_id = ? AND hlc = ? AND delta_id = ?"
_PLACE = {"arrival": "(arrival, hlc, client_id, delta_id, gateway)", "hlc": "(hlc, hlc, client_id, delta_id, gateway)"}
_IDS_AT_ONCE = 500

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[ColumnValue, ...]).decode


class SqliteAdapter:
    """`DatabaseAdapter` and `Materialisable` over a file; one process writes it at a time, any number may read."""

    def __init__(self, path: Path | str) -> None:
        """Args: path: made, with its folder, when it is not there.

        Raises:
            AdapterError: it is no database of SQLite, or cannot be opened.
        """
        self.path = Path(path).expanduser().absolute()
        self._lock = threading.Lock()
        with self._errors("opened"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._sql = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
                self._sql.execute(f"PRAGMA {pragma}").fetchall()
            self._sql.executescript(_SCHEMA)

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Keep a batch in one transaction, and read it back."""
        with self._errors("written"), self._lock:
            with self._transaction():
                self._sql.executemany(_INSERT, [_row(stored, batch.batch_id) for stored in batch.deltas])
            return held(self._present(dict.fromkeys(stored.identity for stored in batch.deltas)))

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """A page, found by the index of its order."""
        where, values = _conditions(query)
        place = _PLACE[query.order]
        statement = f"SELECT {_COLUMNS} FROM lakesync_deltas WHERE {where} ORDER BY {place[1:-1]} LIMIT ?"
        with self._errors("read"), self._lock:
            found = [_stored(row) for row in self._sql.execute(statement, (*values, query.limit + 1))]
        page = tuple(found[: query.limit])
        return DeltaPage(page, position_of(page[-1], query.order) if len(found) > query.limit else None)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """The merge of all deltas held of each row."""
        with self._errors("read"), self._lock:
            return merged(stored.delta for stored in self._of_rows(gateway, table, list(row_ids)))

    def newest_position(self) -> Position | None:
        """The place after the last of all deltas, by its index."""
        order = ", ".join(f"{column} DESC" for column in _PLACE["arrival"][1:-1].split(", "))
        with self._errors("read"), self._lock:
            row = self._sql.execute(f"SELECT {_COLUMNS} FROM lakesync_deltas ORDER BY {order} LIMIT 1").fetchone()
        return position_of(_stored(row), "arrival") if row is not None else None

    def ensure_schema(self, schema: TableSchema) -> None:
        """Make the destination's table, or add the columns that it lacks."""
        with self._errors(f"given table {schema.table!r}"), self._lock, self._transaction():
            ensure_table(self._sql, schema)

    def materialise(self, gateway: str, schema: TableSchema, row_ids: Sequence[str]) -> int:
        """Bring rows of the destination's table in line with the deltas, in one transaction."""
        with self._errors(f"given rows of {schema.table!r}"), self._lock, self._transaction():
            states = merged(stored.delta for stored in self._of_rows(gateway, schema.table, row_ids))
            write_rows(self._sql, schema, states, wall_clock())
        return len(states)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._sql.close()

    def _of_rows(self, gateway: str | None, table: str, row_ids: Sequence[str]) -> Iterator[StoredDelta]:
        for start in range(0, len(row_ids), _IDS_AT_ONCE):
            some = row_ids[start : start + _IDS_AT_ONCE]
            where = f"table_name = ? AND row_id IN ({', '.join('?' * len(some))})"
            values: list[str] = [table, *some]
            if gateway is not None:
                where += " AND gateway = ?"
                values.append(gateway)
            for row in self._sql.execute(f"SELECT {_COLUMNS} FROM lakesync_deltas WHERE {where}", values):
                yield _stored(row)

    def _present(self, identities: Collection[Identity]) -> Iterator[StoredDelta]:
        for identity in identities:
            row = self._sql.execute(_ONE, identity).fetchone()
            if row is not None:
                yield _stored(row)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sql.execute("COMMIT")
        finally:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise AdapterError(f"the database {self.path} cannot be {what}: {error}") from error


def _conditions(query: DeltaQuery) -> tuple[str, list[str | int]]:
    """What must hold, as SQL and its values."""
    where = [f"{query.order} > ?"]
    parts: list[str | int] = [query.since]
    if query.until is not None:
        where.append(f"{query.order} <= ?")
        parts.append(query.until)
    if query.after is not None:
        after = query.after
        where += [f"{query.order} >= ?", f"{_PLACE[query.order]} > (?, ?, ?, ?, ?)"]
        parts += [after.value, after.value, after.hlc, after.client_id, after.delta_id, after.gateway]
    if query.gateway is not None:
        where.append("gateway = ?")
        parts.append(query.gateway)
    for column, wanted in (("table_name", query.tables), ("row_id", query.rows)):
        if wanted:
            where.append(f"{column} IN (SELECT value FROM json_each(?))")
            parts.append(_encode(wanted).decode())
    return " AND ".join(where), parts


def _row(stored: StoredDelta, batch_id: str) -> tuple[str | int, ...]:
    return (*flat(stored, _encode(stored.delta.columns).decode()), batch_id)


def _stored(row: FlatDelta[str]) -> StoredDelta:
    return unflat((*row[:-1], _decode(row[-1])))
