"""SQLite adapter: stores deltas and destination tables in one file on one machine, which any SQLite tool can read.

A *delta* is a change of a row; a *destination table* has the current rows of a synced table. `registry.open_adapter`
creates the adapter for `sqlite:` URIs. `SqlAdapter` has the logic that all SQL databases share: it loads rows into a
*scratch table* (a temporary one), and merges them from there into the others. It uses a database through the protocols
`Executor` and `Connection`, and takes the SQL that differs from a `Dialect`; `lakesync.adapters.sql.backend` documents
their methods. The *kind* of a column is its type in LakeSync.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakesync.adapters.digests import text_checksum
from lakesync.adapters.sql import Column, Connection, Dialect, Kind, SqlAdapter, StatementError, Value
from lakesync.adapters.sql.backend import Pool, arrow_of, on_conflict_statement
from lakesync.adapters.uri import path_of
from lakesync.model.errors import AdapterError

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: dict[Kind, str] = {"integer": "INTEGER", "number": "NUMERIC", "boolean": "INTEGER"}
"""Kind of a column → its type. Columns of the other kinds are TEXT."""


class SqliteAdapter(SqlAdapter):
    """Adapter for one file. One process writes it at a time; any number may read."""

    def __init__(self, path: Path | str) -> None:
        """Open or create the file.

        Args:
            path: the file's path. The file and its folder are created if they do not exist.

        Raises:
            AdapterError: the file is not a SQLite database, or cannot be opened.
        """
        self.path = Path(path).expanduser().absolute()
        super().__init__(SqliteExecutor(self.path), SqliteDialect())
        self.prepare()

    @classmethod
    def of(cls, uri: str) -> SqliteAdapter:
        """Open or create the file of `sqlite:///ABSOLUTE/FILE`.

        Raises:
            ConfigurationError: the URI has no absolute path.
            AdapterError: the file is not a SQLite database, or cannot be opened.
        """
        return cls(path_of(uri))

    def _reclaim_space(self, connection: Connection, tables: Sequence[str]) -> None:  # noqa: ARG002 VACUUM rewrites all tables
        """Rewrite the file and truncate its write-ahead log, so that neither contains erased data.

        Raises:
            AdapterError: another connection reads the write-ahead log.
        """
        connection.execute("VACUUM")
        ((busy, _, _),) = connection.query("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise AdapterError(
                f"the write-ahead log of {self.path} still contains erased data, because another connection is "
                "reading it. Close that connection and repeat the erasure."
            )


class SqliteDialect(Dialect):
    """SQL of SQLite."""

    ignores_case_of_tables = True
    ignores_case_of_columns = True
    table_options = " WITHOUT ROWID"
    """Tables are stored in the order of their key."""

    def column_type(self, kind: Kind) -> str:
        """Return the column's type. SQLite compares text by its bytes, which is the order of code points."""
        return _TYPES.get(kind, "TEXT")

    def create_scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Create a temporary table."""
        definitions = ", ".join([*map(self.column_definition, columns), f"PRIMARY KEY ({', '.join(key)})"])
        return [f"DROP TABLE IF EXISTS temp.{name}", f"CREATE TEMP TABLE {name} ({definitions})"]

    def merge_statement(
        self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]
    ) -> str:
        """Return an INSERT … ON CONFLICT. `WHERE 1` is needed, or SQLite would parse ON as part of the FROM."""
        return on_conflict_statement(table, columns, f"FROM {scratch} WHERE 1", key, update)

    def checksum_expression(self, text: str) -> str:
        """Call the function `lakesync_checksum`, which each connection registers."""
        return f"lakesync_checksum({text})"


class SqliteExecutor:
    """`Executor` with a pool of connections to one file."""

    def __init__(self, path: Path) -> None:
        """Create the executor.

        Args:
            path: the file's path. The file and its folder are created on the first connection.
        """
        self._path = path
        self._pool = Pool(self._open, self._prepare, is_alive=lambda _: True, close=lambda sql: sql.close())

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Lend a connection of the pool."""
        try:
            with self._pool.lease() as sql:
                yield _SqliteConnection(sql)
        except (sqlite3.Error, OSError) as error:
            raise AdapterError(f"the database {self._path} cannot be used: {error}") from error

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    def _open(self) -> sqlite3.Connection:
        """Open the file and create it if it does not exist."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)

    def _prepare(self, sql: sqlite3.Connection) -> None:
        """Set how the file is locked and written, and add the checksum function."""
        for pragma in ("busy_timeout=20000", "journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY"):
            sql.execute(f"PRAGMA {pragma}").fetchall()
        sql.create_function("lakesync_checksum", 1, text_checksum, deterministic=True)


class _SqliteConnection:
    """`Connection` over the standard library's sqlite3."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        return max(0, self._sql.execute(statement, [_to_sqlite(value) for value in values]).rowcount)

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return self._sql.execute(statement, values).fetchall()

    def query_arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        return arrow_of(self.query(statement, values), schema)

    def column_names(self, table: str) -> list[str]:
        return [name for (name,) in self._sql.execute("SELECT name FROM pragma_table_info(?)", [table])]

    def load_scratch(self, table: str, rows: pa.Table) -> None:
        import pyarrow as pa

        columns = []
        for column in rows.columns:
            values = column.to_pylist()
            columns.append([_to_sqlite(value) for value in values] if pa.types.is_timestamp(column.type) else values)
        placeholders = ", ".join("?" * len(columns))
        needs_transaction = not self._sql.in_transaction
        if needs_transaction:
            self._sql.execute("BEGIN")
        self._sql.executemany(f"INSERT INTO temp.{table} VALUES ({placeholders})", zip(*columns, strict=True))
        if needs_transaction:
            self._sql.execute("COMMIT")

    def statement_error(self, error: BaseException) -> StatementError | None:
        # An error that has ended the transaction is not a statement's error: the caller cannot continue.
        if not isinstance(error, sqlite3.Error) or not self._sql.in_transaction:
            return None
        is_value_error = isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError))
        return StatementError(str(error), is_value_error)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise


def _to_sqlite(value: Value) -> str | int | None:
    """Return a time as ISO 8601 text, because SQLite has no type for times; other values unchanged."""
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value
