"""Postgres adapter: stores deltas and destination tables in one database.

`registry.open_adapter` creates it for `postgresql:` URIs; `SqlAdapter` has the logic that all SQL databases share.
Needs psycopg: `pip install 'lakesync[postgres]'`.

Arrow tables are written and read column by column, because a Python loop needs microseconds for each row. Writes use
COPY: its binary format if all columns are text or 64-bit integers, else CSV. Reads let the server join each column into
one value.
"""

from __future__ import annotations

import io
import select
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from lakesync.adapters.arrow import HASH_BYTES, hashes_from_bytes
from lakesync.adapters.sql import Column, Connection, Dialect, Kind, SqlAdapter, StatementError, Value
from lakesync.adapters.sql.backend import Pool, on_conflict_statement
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
"""The same for VACUUM of one table."""
_LOCK_SECONDS = 30
"""How long a statement waits for a lock before it fails, unless the URI or the role sets a limit."""
_VALUE_ERRORS = ("22", "23", "54")
"""SQLSTATE classes for rejected values: data exceptions, constraint violations, and program limits."""
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The header of COPY's binary format: signature, no flags, no extension."""
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
"""The length -1 of a field, which means null."""
_LENGTH_BYTES = 4
_INT64_BYTES = 8


class PostgresAdapter(SqlAdapter):
    """Adapter for one database; any number of processes may write it."""

    def __init__(self, uri: str) -> None:
        """Create the adapter; it connects on the first call.

        Args:
            uri: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as libpq reads it.

        Raises:
            ConfigurationError: the driver is not installed.
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
        return on_conflict_statement(table, columns, f"FROM {scratch} s ORDER BY {', '.join(key)}", key, update)

    def checksum_expression(self, text: str) -> str:
        """Return the first 32 bits of the text's MD5 as a number. Every dialect computes the same checksum."""
        return f"('x' || left(md5({text}), 8))::bit(32)::bigint"

    def create_table(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Create a table under an advisory lock."""
        return [f"SELECT pg_advisory_xact_lock({_CREATE_TABLE_LOCK})", *super().create_table(name, columns, key)]

    def create_lookup_index(self, name: str, table: str, column: Column) -> Sequence[str]:
        """Create a hash index: a B-tree rejects values of more than 2,704 bytes."""
        return [f"CREATE INDEX IF NOT EXISTS {name} ON {table} USING hash ({column.name})"]


class PostgresExecutor:
    """`Executor` with a pool of psycopg connections."""

    def __init__(self, uri: str) -> None:
        """Check the driver.

        Args:
            uri: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as libpq reads it.

        Raises:
            ConfigurationError: the driver is not installed.
        """
        with extra("postgres", "Postgres needs its driver"):
            import psycopg

            from lakesync.wire import postgres
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
        """Open a connection."""
        return self._wire.BoundedConnection.connect(**self._wire.parameters(self._uri), autocommit=True)

    def _prepare(self, connection: BoundedConnection) -> None:
        """Set UTC, and time limits for statements and locks unless the URI or the role sets some."""
        connection.execute("SET TIME ZONE 'UTC'")
        for name, seconds in (("statement_timeout", _STATEMENT_SECONDS), ("lock_timeout", _LOCK_SECONDS)):
            connection.execute(
                f"SELECT set_config('{name}', '{seconds}s', false) WHERE current_setting('{name}') = '0'".encode()
            )
        limit = connection.execute("SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'").fetchone()
        statement_ms = limit[0] if limit is not None else _STATEMENT_SECONDS * 1000
        connection.response_seconds = statement_ms / 1000 + _MARGIN_SECONDS

    def _is_alive(self, connection: BoundedConnection) -> bool:
        """Return whether the server still answers on a connection."""
        try:
            self._wire.check_connection(connection)
        except self._driver.Error:
            return False
        return True


class _PostgresConnection:
    """`Connection`, `DirectAppend` and `HashReader` over psycopg.

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
        return max(0, self._sql.execute(_with_placeholders(statement), list(values)).rowcount)

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        return self._sql.execute(_with_placeholders(statement), list(values)).fetchall()

    def query_arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        from psycopg.errors import OutOfMemory, ProgramLimitExceeded

        try:
            with self._sql.transaction():  # a savepoint if a transaction is open
                return read_columns(self._sql, _with_placeholders(statement), values, schema)
        except (OutOfMemory, ProgramLimitExceeded):  # a column exceeds one gigabyte
            return self._query_with_copy(statement, values, schema)

    def read_hashes(self, statement: str, values: Sequence[Value]) -> pa.FixedSizeBinaryArray | None:
        from psycopg.errors import DataError, OutOfMemory, ProgramLimitExceeded

        query = (
            b"SELECT count(*), string_agg(decode(id, 'hex'), ''::bytea) FROM ("
            + _with_placeholders(statement)
            + b") AS ids"
        )
        try:
            with self._sql.transaction(), self._sql.cursor(binary=True) as cursor:
                ((count, joined),) = cursor.execute(query, list(values)).fetchall()
        except (DataError, OutOfMemory, ProgramLimitExceeded):  # an id is not hexadecimal, or the result is too large
            return None
        return hashes_from_bytes(joined or b"") if len(joined or b"") == HASH_BYTES * count else None

    def _query_with_copy(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        """Run a query whose result is too large for one value per column."""
        from psycopg import ClientCursor

        query = ClientCursor(self._sql).mogrify(_with_placeholders(statement), list(values))  # COPY takes no parameters
        return read_csv(copy_out(self._sql, f"COPY ({query}) TO STDOUT (FORMAT csv)".encode()), schema)

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

    def _copy(self, table: str, columns: Sequence[str], form: str, parts: Iterable[memoryview | bytes]) -> None:
        """Write data to a table with COPY; `form` is its format, `csv` or `binary`."""
        names = ", ".join(f'"{name}"' for name in columns)
        with (
            self._sql.cursor() as cursor,
            cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT {form})".encode()) as copy,
        ):
            for part in parts:
                copy.write(part)

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


def _with_placeholders(statement: str) -> bytes:
    """Replace `?` with psycopg's `%s`. Statements contain no literal `?`."""
    return statement.replace("%", "%%").replace("?", "%s").encode()


def _message(error: psycopg.Error) -> str:
    """Return an error's message without its details."""
    return (error.diag.message_primary or str(error)).strip()


def encode_binary(rows: Iterator[pa.Table]) -> Iterator[memoryview | bytes]:
    """Encode rows for `COPY … (FORMAT binary)`, and yield the bytes to send.

    A thread encodes each chunk while the caller sends the previous one.

    Args:
        rows: chunks of strings and 64-bit integers; integers must not be null.
    """

    def encode_next() -> memoryview | None:
        chunk = next(rows, None)
        return None if chunk is None else _encode_chunk(chunk)

    with ThreadPoolExecutor(1) as executor:
        next_chunk = executor.submit(encode_next)
        yield _HEADER
        while (encoded := next_chunk.result()) is not None:
            next_chunk = executor.submit(encode_next)
            yield encoded
        yield _TRAILER


def _encode_chunk(rows: pa.Table) -> memoryview:
    """Return rows in COPY's binary format: for each row the number of fields, then length and content of each field."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(rows)
    fields: list[Any] = [pa.scalar(rows.num_columns.to_bytes(2, "big"), pa.binary())]
    for column in rows.columns:
        if column.null_count == count:
            fields.append(pa.scalar(_NULL, pa.binary()))
        elif pa.types.is_integer(column.type):
            numbers = np.empty((count, _LENGTH_BYTES + _INT64_BYTES), np.uint8)
            numbers[:, :_LENGTH_BYTES] = (0, 0, 0, _INT64_BYTES)
            numbers[:, _LENGTH_BYTES:] = column.to_numpy().astype(">i8").view(np.uint8).reshape(count, _INT64_BYTES)
            fields.append(_binary_array(numbers, _LENGTH_BYTES + _INT64_BYTES))
        else:
            values = column.combine_chunks().cast(pa.string())
            lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False).astype(">i4")
            fields += [_binary_array(lengths, _LENGTH_BYTES), pc.fill_null(values, "").cast(pa.binary())]
    joined = pc.binary_join_element_wise(*fields, b"")
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return memoryview(data)[ends[joined.offset] : ends[joined.offset + count]]


def _binary_array(values: Any, width: int) -> pa.Array:
    """Return a numpy array's bytes as one binary value of `width` bytes per row."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(values)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), buffers).cast(pa.binary())


def encode_csv(rows: pa.Table) -> memoryview:
    """Encode rows with columns of any type for `COPY … (FORMAT csv)`."""
    from pyarrow import csv

    file = io.BytesIO()
    csv.write_csv(rows, file, csv.WriteOptions(include_header=False))
    return file.getbuffer()


def read_columns(
    connection: psycopg.Connection[Any], statement: bytes, values: Sequence[object], schema: pa.Schema
) -> pa.Table:
    """Return a query's result as an Arrow table.

    The server joins the values of each column into one text or bytes, and their lengths into another. Arrow's own
    layout is the same, so no value is decoded by itself. The aggregates have no ORDER BY of their own: all of them read
    the rows of the query in one pass, in the order in which it returns them.

    Args:
        connection: an open connection.
        statement: the query.
        values: its parameters.
        schema: the result's columns: strings and 64-bit integers, without nulls, which `string_agg` would leave out.
    """
    import numpy as np
    import pyarrow as pa

    expressions = []
    for field in schema:
        name = f'"{field.name}"'
        if pa.types.is_integer(field.type):
            expressions.append(f"string_agg(int8send({name}), ''::bytea)")
        else:
            expressions += [f"string_agg(int4send(octet_length({name})), ''::bytea)", f"string_agg({name}, '')"]
    query = f"SELECT count(*), {', '.join(expressions)} FROM (".encode() + statement + b") AS page"
    with connection.cursor(binary=True) as cursor:
        result = cursor.execute(query, list(values)).pgresult
        assert result is not None
        row_count, *parts = [result.get_value(0, index) for index in range(1 + len(expressions))]
    count = int.from_bytes(row_count or b"", "big")
    if not count:
        return schema.empty_table()
    values_of_columns = iter(parts)
    arrays = []
    for field in schema:
        if pa.types.is_integer(field.type):
            arrays.append(pa.array(np.frombuffer(next(values_of_columns) or b"", ">i8").astype(np.int64)))
            continue
        ends = np.cumsum(np.frombuffer(next(values_of_columns) or b"", ">i4"), dtype=np.int64)
        offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))
        arrays.append(pa.StringArray.from_buffers(count, offsets, pa.py_buffer(next(values_of_columns) or b"")))
    return pa.Table.from_arrays(arrays, schema=schema)


def copy_out(connection: psycopg.Connection[Any], statement: bytes) -> bytes:
    """Run a `COPY … TO STDOUT` statement and return its bytes. psycopg's own reader is slower: it polls for each row.

    Args:
        connection: an open connection.
        statement: the statement.

    Raises:
        psycopg.Error: the statement failed.
    """
    from psycopg import errors, pq

    pgconn = connection.pgconn
    parts: list[bytes | memoryview] = []
    result = pgconn.exec_(statement)
    if result.status == pq.ExecStatus.COPY_OUT:
        while True:
            size, data = pgconn.get_copy_data(1)
            if size > 0:
                parts.append(data)
            elif size == 0:
                select.select([pgconn.socket], [], [])  # releases the GIL while waiting
                pgconn.consume_input()
            else:
                break
        while (final := pgconn.get_result()) is not None:
            result = final
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(result, encoding="utf-8")
    return b"".join(parts)


def read_csv(text: bytes, schema: pa.Schema) -> pa.Table:
    """Decode the output of a COPY in CSV format.

    Args:
        text: the output.
        schema: the columns, in the order of the output.
    """
    from pyarrow import csv

    if not text:
        return schema.empty_table()
    return csv.read_csv(
        io.BytesIO(text),
        csv.ReadOptions(column_names=schema.names, block_size=max(1 << 20, min(len(text), 2**31 - 1))),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
        ),
    )
