"""Postgres adapter: stores deltas (changes of rows) and destination tables (tables of current rows) in one database.

`registry.open_adapter` creates it for `postgresql:` URIs. `SqlAdapter` has the logic that all SQL databases share. It
uses a database through the protocols `Executor` and `Connection`, and takes the SQL that differs from a `Dialect`;
`lakesync.adapters.sql.backend` documents their methods. A *scratch table* is temporary: rows are loaded into it, and
merged from there into others. The *kind* of a column is its type in LakeSync. Needs psycopg: `pip install
'lakesync[postgres]'`.

Writes use COPY: its binary format if all columns are text or 64-bit integers, else CSV. Reads let the server join each
column into one value. `postgres_arrow.py` converts both from and to Arrow tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from lakesync.adapters.arrow import HASH_BYTES, hashes_from_bytes
from lakesync.adapters.backends.postgres_arrow import encode_binary, encode_csv, read_columns
from lakesync.adapters.sql import Column, Connection, Dialect, Kind, SqlAdapter, StatementError, Value, arrow_of
from lakesync.adapters.sql.backend import Pool, format_placeholders, on_conflict_statement
from lakesync.model.errors import AdapterError, extra
from lakesync.model.secrets import without_password

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    from lakesync.wire.postgres import BoundedConnection

_TYPES: dict[Kind, str] = {
    "id": 'text COLLATE "C"',
    "name": 'text COLLATE "C"',
    "text": "text",
    "string": "text",
    "integer": "bigint",
    "number": "numeric",
    "boolean": "boolean",
    "json": "jsonb",
    "time": "timestamptz",
}
"""Kind of column → Postgres' type."""
_CREATE_TABLE_LOCK = 0x1A4E_57AC
"""Number of the advisory lock for creating tables, because concurrent `IF NOT EXISTS` statements can fail."""
_MARGIN_SECONDS = 10
"""Seconds of silence, beyond a statement's time limit, after which it fails: the server should have cancelled it."""
_STATEMENT_SECONDS = 300
"""A longer statement is cancelled, unless the URI or the role sets a limit."""
_VACUUM_SECONDS = 3600
"""The limit for VACUUM of one table."""
_LOCK_SECONDS = 30
"""How long a statement waits for a lock before it fails, unless the URI or the role sets a limit."""
_VALUE_ERRORS = ("22", "23", "54")
"""SQLSTATE classes for rejected values: data exceptions, constraint violations, and program limits."""


class PostgresAdapter(SqlAdapter):
    """Adapter for one database; any number of processes may write it."""

    def __init__(self, uri: str) -> None:
        """Create the adapter; it connects on the first call.

        Args:
            uri: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as libpq reads it.

        Raises:
            ConfigurationError: the driver is not installed, or the URI is invalid.
        """
        super().__init__(PostgresExecutor(uri), PostgresDialect())

    def _reclaim_space(self, connection: Connection, tables: Sequence[str]) -> None:
        """Remove the old versions of rows, so that the tables' files do not contain erased content."""
        with cast("_PostgresConnection", connection).limited(_VACUUM_SECONDS):
            for table in tables:
                connection.execute(f"VACUUM {table}")


class PostgresDialect(Dialect):
    """SQL of Postgres."""

    concurrent_writers = True
    """Transactions on different rows run concurrently, so large loads are divided among tasks."""
    max_name_chars = 63  # NAMEDATALEN - 1 bytes; names are ASCII

    def column_type(self, kind: Kind) -> str:
        """Return the column's type. The collation C orders texts by code point, as LakeSync does everywhere."""
        return _TYPES[kind]

    def create_scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        """Create a temporary table."""
        definitions = ", ".join(self.column_definition(column) for column in columns)
        return [f"DROP TABLE IF EXISTS pg_temp.{name}", f"CREATE TEMPORARY TABLE {name} ({definitions})"]

    def merge_statement(
        self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]
    ) -> str:
        """Return an INSERT … ON CONFLICT ordered by key, so that two writers of the same rows cannot deadlock."""
        return on_conflict_statement(
            table, columns, f"FROM {scratch} _lakesync_new ORDER BY {', '.join(key)}", key, update
        )

    def checksum_expression(self, text: str) -> str:
        """Return the first 32 bits of the text's MD5 as a number. Every dialect computes the same checksum."""
        return f"('x' || left(md5({text}), 8))::bit(32)::bigint"

    def create_table(
        self, name: str, columns: Sequence[Column], key: Sequence[str], indexes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """Create a table under an advisory lock."""
        lock = f"SELECT pg_advisory_xact_lock({_CREATE_TABLE_LOCK})"
        return [lock, *super().create_table(name, columns, key, indexes)]

    def lookup_index(self, column: Column) -> str | None:
        """Use a hash index: a B-tree rejects values of more than 2,704 bytes."""
        return f"USING hash ({column.name})"


class PostgresExecutor:
    """`Executor` with a pool of psycopg connections.

    A statement on a `BoundedConnection` fails if the server is silent for `response_seconds`.
    """

    def __init__(self, uri: str) -> None:
        """Check the driver.

        Args:
            uri: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as libpq reads it.

        Raises:
            ConfigurationError: the driver is not installed, or the URI is invalid.
        """
        with extra("postgres", "Postgres needs its driver"):
            import psycopg

            from lakesync.wire import postgres
        self._parameters = {**postgres.parameters(uri), "client_encoding": "UTF8"}
        self._driver, self._wire = psycopg, postgres
        self._uri = uri
        self._pool = Pool(self._open, self._prepare, self._is_alive, lambda connection: connection.close())

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Lend a connection of the pool."""
        try:
            with self._pool.lease() as connection:
                yield _PostgresConnection(connection)
        except self._driver.Error as error:
            message = without_password(_message(error))
            raise AdapterError(f"Postgres at {without_password(self._uri)} failed: {message}") from None

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    def _open(self) -> BoundedConnection:
        """Open a connection with the client encoding UTF-8, which Arrow has; the database may have another encoding."""
        return self._wire.BoundedConnection.connect(**self._parameters, autocommit=True)

    def _prepare(self, connection: BoundedConnection) -> None:
        """Set UTC, and time limits for statements and locks unless the URI or the role sets some."""
        connection.execute("SET TIME ZONE 'UTC'")
        for name, seconds in (("statement_timeout", _STATEMENT_SECONDS), ("lock_timeout", _LOCK_SECONDS)):
            connection.execute(
                f"SELECT set_config('{name}', '{seconds}s', false) WHERE current_setting('{name}') = '0'".encode()
            )
        query = "SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'"
        ((statement_ms,),) = connection.execute(query).fetchall()
        connection.response_seconds = statement_ms / 1000 + _MARGIN_SECONDS

    def _is_alive(self, connection: BoundedConnection) -> bool:
        """Return whether the server still answers on a connection."""
        try:
            self._wire.check_connection(connection)
        except self._driver.Error:
            return False
        return True


class _PostgresConnection:
    """`Connection`, `DirectAppend` (COPY into a table) and `HashReader` (delta ids as bytes) over psycopg.

    These protocols document the methods. If `append` returns False or `read_hashes` None, callers take a slower way.
    """

    def __init__(self, connection: BoundedConnection) -> None:
        self._sql = connection

    @contextmanager
    def limited(self, seconds: int) -> Iterator[None]:
        """Use another time limit for statements in the `with` block.

        The limit stays after an error, because the pool closes a connection whose use failed.

        Args:
            seconds: after which the server cancels a statement. The client waits `_MARGIN_SECONDS` longer for it.
        """
        (before,) = self._sql.execute("SHOW statement_timeout").fetchone() or ("0",)
        self._sql.execute(f"SET statement_timeout = '{seconds}s'".encode())
        with self._sql.limited(seconds + _MARGIN_SECONDS):  # the client's own wait for the server
            yield
        self._sql.execute(f"SET statement_timeout = '{before}'".encode())

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        return max(0, self._sql.execute(format_placeholders(statement).encode(), list(values)).rowcount)

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return self._sql.execute(format_placeholders(statement).encode(), list(values)).fetchall()

    def query_arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        from psycopg.errors import OutOfMemory, ProgramLimitExceeded

        try:
            with self._sql.transaction():  # a savepoint if a transaction is open
                return read_columns(self._sql, format_placeholders(statement).encode(), values, schema)
        except (OutOfMemory, ProgramLimitExceeded):  # a column exceeds one gigabyte, Postgres' limit of a value
            return arrow_of(self.query(statement, values), schema)

    def read_hashes(self, statement: str, values: Sequence[Value]) -> pa.FixedSizeBinaryArray | None:
        from psycopg.errors import DataError, OutOfMemory, ProgramLimitExceeded

        query = (
            b"SELECT count(*), string_agg(decode(id, 'hex'), ''::bytea) FROM ("
            + format_placeholders(statement).encode()
            + b") AS ids"
        )
        try:
            with self._sql.transaction(), self._sql.cursor(binary=True) as cursor:
                ((count, joined),) = cursor.execute(query, list(values)).fetchall()
        except (DataError, OutOfMemory, ProgramLimitExceeded):  # an id is not hexadecimal, or the result is too large
            return None
        return hashes_from_bytes(joined or b"") if len(joined or b"") == HASH_BYTES * count else None

    def column_names(self, table: str) -> list[str]:
        found = self.query(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
            " ORDER BY attnum",
            [f'"{table}"'],
        )
        return [name for (name,) in found]

    def load_scratch(self, table: str, rows: pa.Table) -> None:
        self._copy(f"pg_temp.{table}", rows.column_names, "csv", [encode_csv(rows)])

    def append(self, table: str, columns: Sequence[str], rows: Iterator[pa.Table]) -> bool:
        from psycopg.errors import UniqueViolation

        try:
            with self._sql.transaction():  # a savepoint
                self._copy(table, columns, "binary", encode_binary(rows))
        except UniqueViolation:
            return False
        return True

    def statement_error(self, error: BaseException) -> StatementError | None:
        import psycopg

        if not isinstance(error, psycopg.Error) or self._sql.broken or self._sql.closed:
            return None
        code = error.sqlstate or ""
        return StatementError(without_password(_message(error)), code.startswith(_VALUE_ERRORS))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._sql.transaction():
            yield

    def _copy(self, table: str, columns: Sequence[str], form: str, parts: Iterable[memoryview | bytes]) -> None:
        """Write data to a table with COPY; `form` is its format, `csv` or `binary`."""
        names = ", ".join(f'"{name}"' for name in columns)
        with (
            self._sql.cursor() as cursor,
            cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT {form})".encode()) as copy,
        ):
            for part in parts:
                copy.write(part)


def _message(error: psycopg.Error) -> str:
    """Return an error's message without its details."""
    return (error.diag.message_primary or str(error)).strip()
