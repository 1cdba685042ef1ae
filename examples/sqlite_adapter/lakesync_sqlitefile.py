"""A third-party adapter: SQLite through the interface of `lakesync.adapters.sql`, using no other part of LakeSync.

`sqlitefile:///ABSOLUTE/FILE`. The dialect has the database's SQL, the executor runs statements. Deltas, destination
tables and marks come with the base class.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lakesync.adapters.digests import text_checksum
from lakesync.adapters.sql import Column, Connection, Dialect, Kind, SqlAdapter, StatementError, Value, arrow_of
from lakesync.model.errors import AdapterError

if TYPE_CHECKING:
    import pyarrow as pa


def open_file(uri: str) -> SqlAdapter:
    """Open the adapter of a URI; the entry point's function."""
    return SqlAdapter(FileExecutor(unquote(urlsplit(uri).path)), FileDialect())


class FileDialect(Dialect):
    """SQLite's SQL in four methods; names are quoted as in the base class."""

    def column_type(self, kind: Kind) -> str:
        """Return the type of a column."""
        return {"integer": "INTEGER", "boolean": "INTEGER", "number": "NUMERIC"}.get(kind, "TEXT")

    def create_scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Create a temporary table."""
        body = ", ".join(self.column_definition(column) for column in columns)
        return f"DROP TABLE IF EXISTS {name}", f"CREATE TEMP TABLE {name} ({body}, UNIQUE ({', '.join(key)}))"

    def merge_statement(
        self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]
    ) -> str:
        """Return an INSERT … ON CONFLICT. SQLite needs the WHERE to parse ON."""
        listed = ", ".join(columns)
        taken = ", ".join(f"{name} = excluded.{name}" for name in update)
        what = f"DO UPDATE SET {taken}" if taken else "DO NOTHING"
        rows = f"SELECT {listed} FROM {scratch} s WHERE 1"
        return f"INSERT INTO {table} ({listed}) {rows} ON CONFLICT ({', '.join(key)}) {what}"

    def checksum_expression(self, text: str) -> str:
        """Call a function that each connection registers."""
        return f"md5_checksum({text})"


class FileExecutor:
    """Opens a connection for each use: simple, and safe between threads."""

    def __init__(self, path: str) -> None:
        """Set the file.

        Args:
            path: of the file.
        """
        self._path = path

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection, and close it."""
        try:
            opened = sqlite3.connect(self._path, isolation_level=None, timeout=20)
            try:
                opened.execute("PRAGMA journal_mode = WAL")
                opened.execute("PRAGMA synchronous = FULL")
                opened.create_function("md5_checksum", 1, text_checksum, deterministic=True)
                yield FileConnection(opened)
            finally:
                opened.close()
        except sqlite3.Error as error:
            raise AdapterError(f"the file {self._path} refused: {error}") from error

    def close(self) -> None:
        """Do nothing: no connection stays open."""


class FileConnection:
    """Statements through sqlite3."""

    def __init__(self, opened: sqlite3.Connection) -> None:
        """Wrap a connection.

        Args:
            opened: in autocommit mode.
        """
        self._opened = opened

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Execute a statement and return the number of rows changed."""
        return max(self._opened.execute(statement, [plain(value) for value in values]).rowcount, 0)

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """Execute a query."""
        return list(self._opened.execute(statement, [plain(value) for value in values]))

    def query_arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        """Execute a query with a large result."""
        return arrow_of(self.query(statement, values), schema)

    def column_names(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return [row[1] for row in self._opened.execute(f'PRAGMA table_info("{table}")')]

    def load_scratch(self, table: str, rows: pa.Table) -> None:
        """Append rows to a scratch table."""
        marks = ", ".join("?" * rows.num_columns)
        values = ([plain(value) for value in row.values()] for row in rows.to_pylist())
        self._opened.executemany(f"INSERT INTO {table} VALUES ({marks})", values)

    def statement_error(self, error: BaseException) -> StatementError | None:
        """Classify an error after which the transaction continues."""
        if not isinstance(error, sqlite3.Error) or not self._opened.in_transaction:
            return None
        return StatementError(str(error), isinstance(error, sqlite3.IntegrityError))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the statements inside atomically."""
        self._opened.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._opened.execute("ROLLBACK")
            raise
        self._opened.execute("COMMIT")


def plain(value: Value) -> str | int | None:
    """Convert a value to what sqlite3 stores."""
    return value.isoformat() if isinstance(value, datetime) else value
