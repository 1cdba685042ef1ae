"""An example of a third-party adapter: SQLite files as a destination, by the interface of `lakesync.adapters.sql`.

Its URIs are `sqlitefile:///ABSOLUTE/FILE`. The dialect has the database's SQL, and the executor runs statements. The
base class does the rest: the deltas (changes of rows), the destination tables (current rows), and the marks, which say
up to which delta a destination was written. LakeSync calls `open_file`, the entry point in `pyproject.toml`.
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
    """Return the adapter of a URI. LakeSync finds this function by the entry point."""
    return SqlAdapter(FileExecutor(unquote(urlsplit(uri).path)), FileDialect())


class FileDialect(Dialect):
    """SQLite's SQL in four methods; names are quoted as in the base class."""

    ignores_case_of_tables = True
    ignores_case_of_columns = True

    def column_type(self, kind: Kind) -> str:
        """Return the SQL type of a column of this kind; kinds that SQLite lacks are stored as text."""
        return {"integer": "INTEGER", "boolean": "INTEGER", "number": "NUMERIC"}.get(kind, "TEXT")

    def create_scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Return the statements that replace a temporary table, whose rows are then merged into another.

        Args:
            name: the table's quoted name.
            columns: its columns.
            key: the quoted names of the columns that are unique together.
        """
        body = ", ".join(self.column_definition(column) for column in columns)
        return f"DROP TABLE IF EXISTS {name}", f"CREATE TEMP TABLE {name} ({body}, UNIQUE ({', '.join(key)}))"

    def merge_statement(
        self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]
    ) -> str:
        """Return the statement that inserts or updates a table's rows from a scratch table.

        Args:
            table: the table's quoted name.
            scratch: the scratch table's quoted name.
            columns: the quoted columns to write, in the order of the scratch table.
            key: the quoted columns by which rows are equal.
            update: the quoted columns to replace in a row that exists; empty to leave such a row unchanged.
        """
        names = ", ".join(columns)
        changes = ", ".join(f"{name} = excluded.{name}" for name in update)
        on_conflict = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
        # not `SELECT {names}`: SQLite renames the columns "true" and "false" of a subquery
        rows = f"SELECT * FROM {scratch} s WHERE 1"  # without WHERE, SQLite takes ON for a part of a join
        into = f"{table} AS target"  # because the table itself may be called `excluded`
        return f"INSERT INTO {into} ({names}) {rows} ON CONFLICT ({', '.join(key)}) {on_conflict}"

    def checksum_expression(self, text: str) -> str:
        """Return SQL for a number that is computed from a text; each connection registers the function."""
        return f"md5_checksum({text})"


class FileExecutor:
    """Opens a connection for each use: simple, and safe between threads."""

    def __init__(self, path: str) -> None:
        """Name the file.

        Args:
            path: the file's path; SQLite creates the file if it does not exist.
        """
        self._path = path

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection, and close it after the block.

        Raises:
            AdapterError: SQLite raised an error.
        """
        try:
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=20)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.create_function("md5_checksum", 1, text_checksum, deterministic=True)
                yield FileConnection(connection)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise AdapterError(f"the file {self._path} cannot be used: {error}") from error

    def close(self) -> None:
        """Do nothing: no connection stays open."""


class FileConnection:
    """Runs statements by sqlite3. Statements have `?` for each value."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Wrap a connection.

        Args:
            connection: an open connection in autocommit mode.
        """
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Execute a statement and return the number of rows changed."""
        return max(self._connection.execute(statement, [plain(value) for value in values]).rowcount, 0)

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """Execute a query and return its rows."""
        return list(self._connection.execute(statement, [plain(value) for value in values]))

    def query_arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        """Execute a query, and return its result as an Arrow table of this schema."""
        return arrow_of(self.query(statement, values), schema)

    def column_names(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return [row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')]

    def load_scratch(self, table: str, rows: pa.Table) -> None:
        """Append rows to a scratch table."""
        marks = ", ".join("?" * rows.num_columns)
        values = ([plain(value) for value in row.values()] for row in rows.to_pylist())
        self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)

    def statement_error(self, error: BaseException) -> StatementError | None:
        """Return an error of one statement after which the transaction can continue; None for any other error.

        After a violated constraint, the base class tries the rows one by one.
        """
        if not isinstance(error, sqlite3.Error) or not self._connection.in_transaction:
            return None
        return StatementError(str(error), isinstance(error, sqlite3.IntegrityError))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of the block together; roll them back if it raises."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def plain(value: Value) -> str | int | None:
    """Return a value in a type that sqlite3 binds: a time becomes ISO 8601 text."""
    return value.isoformat() if isinstance(value, datetime) else value
