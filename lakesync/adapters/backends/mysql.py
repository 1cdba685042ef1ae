"""MySQL and MariaDB adapter: stores deltas (changes of rows) and destination tables (tables of current rows).

It writes with LOAD DATA LOCAL if the server allows it, otherwise with multi-row INSERTs. `registry.open_adapter`
creates it for `mysql:` URIs. `SqlAdapter` has the logic that all SQL databases share. It uses a database through the
protocols `Executor` and `Connection`, and takes the SQL that differs from a `Dialect`; `lakesync.adapters.sql.backend`
documents their methods. A *scratch table* is temporary: rows are loaded into it, and merged from there into others. The
*kind* of a column is its type in LakeSync. Needs pymysql: `pip install 'lakesync[mysql]'`. Tested on MariaDB.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakesync.adapters.sql import Column, Connection, Dialect, Kind, SqlAdapter, StatementError, Value
from lakesync.adapters.sql.backend import Pool, arrow_of, format_placeholders
from lakesync.adapters.uri import BackendUri
from lakesync.model.errors import AdapterError, ConfigurationError, extra
from lakesync.model.secrets import without_password

if TYPE_CHECKING:
    import pyarrow as pa
    import pymysql
    from pymysql.connections import Connection as Driver

_TYPES: dict[Kind, str] = {
    "id": "VARCHAR(512) CHARACTER SET utf8mb4 COLLATE {collation}",
    "name": "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE {collation}",
    "text": "LONGTEXT CHARACTER SET utf8mb4",
    "string": "LONGTEXT CHARACTER SET utf8mb4",
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "json": "JSON",
    "time": "DATETIME(3)",
}
"""Kind of column → MySQL's type."""
_LOOKUP_CHARS = 255
"""Characters of a text that its index contains. InnoDB allows at most 768, which are 3,072 bytes."""
_CONNECT_SECONDS = 10
"""Time limit for opening a connection."""
_STATEMENT_SECONDS = 300
"""A longer statement is cancelled: by MariaDB, or on MySQL by the socket's timeout, which is `_CONNECT_SECONDS` longer
so that MariaDB cancels first."""
_LOCK_SECONDS = 30
"""How long a statement waits for a lock before it fails."""
_VALUE_ERRORS = frozenset(
    {
        *(1048, 1062, 1264, 1265, 1292, 1364, 1366, 1406, 1451, 1452, 1525, 1690, 3819, 4025),
        *(3140, 3141, 3150, 3157, 3158, 4036, 4037, 4038, 4039, 4040),  # JSON errors
    }
)
"""Error codes for rejected values: the value does not fit its column, or violates a constraint."""
_TRANSACTION_LOST = frozenset({1053, 1213, 2006, 2013, 2014, 2055})
"""Error codes that also end the transaction or its savepoints: lost connections and deadlocks."""
_LOCAL_INFILE_DISABLED = frozenset({1148, 2068, 3948, 3950, 4166})
"""Error codes for LOAD DATA LOCAL if the server or the client has disabled it."""
_OPTIONS = frozenset({"ssl_ca"})
"""Options of the URI."""


class MySqlAdapter(SqlAdapter):
    """Adapter for one database, which any number of processes may write. Columns of type `number` are doubles."""

    def __init__(self, uri: str) -> None:
        """Create the adapter; it connects on the first call.

        Args:
            uri: `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, with `?ssl_ca=FILE` for TLS.

        Raises:
            ConfigurationError: the URI names no database, or the driver is not installed.
        """
        executor = MySqlExecutor(uri)
        super().__init__(executor, MySqlDialect(executor))


class MySqlDialect(Dialect):
    """SQL of MySQL and MariaDB."""

    concurrent_writers = True
    ignores_case_of_columns = True
    commits_each_definition = True
    max_json_depth = 31
    """MariaDB rejects JSON with 32 levels, MySQL with 101."""

    def __init__(self, executor: MySqlExecutor) -> None:
        """Create the dialect.

        Args:
            executor: knows after its first connection whether the server is MySQL or MariaDB, whose SQL differs.
        """
        self._executor = executor

    def column_type(self, kind: Kind) -> str:
        """Return the column's type. Keys compare by code point without padding; the collation depends on the server."""
        return _TYPES[kind].format(collation=self._executor.collation)

    def create_scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Create a temporary table."""
        definitions = ", ".join([*map(self.column_definition, columns), f"PRIMARY KEY ({', '.join(key)})"])
        return [f"DROP TEMPORARY TABLE IF EXISTS {name}", f"CREATE TEMPORARY TABLE {name} ({definitions})"]

    def merge_statement(
        self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]
    ) -> str:
        """Return an INSERT … ON DUPLICATE KEY UPDATE that fails on a conflict with another unique key.

        Without the guard, MySQL would update the other row that has the unique key, or skip the new row. The guard sets
        the other row's primary key to null, which MySQL rejects.
        """
        names = ", ".join(columns)
        is_same = " AND ".join(f"{table}.{column} = VALUES({column})" for column in key)
        guard = f"{key[0]} = IF({is_same}, {table}.{key[0]}, NULL)"
        assignments = ", ".join([guard, *(f"{column} = VALUES({column})" for column in update)])
        rows = f"{scratch} _lakesync_new"
        return f"INSERT INTO {table} ({names}) SELECT {names} FROM {rows} ON DUPLICATE KEY UPDATE {assignments}"

    def quote(self, name: str) -> str:
        """Quote with backticks."""
        return f"`{name}`"

    def checksum_expression(self, text: str) -> str:
        """Return the first 32 bits of the text's MD5 as a number. Every dialect computes the same checksum."""
        return f"CAST(CONV(LEFT(MD5({text}), 8), 16, 10) AS UNSIGNED)"

    def text_expression(self, column: Column) -> str:
        """Cast to UTF-8 text, whatever the column's collation is."""
        return f"CAST({column.name} AS CHAR CHARACTER SET utf8mb4)"

    def integer_division(self, number: str, by: int) -> str:
        """Use DIV, because `/` returns decimals."""
        return f"({number} DIV {by})"

    def lookup_index(self, column: Column) -> str | None:
        """Index a text's prefix; MySQL has no index on JSON."""
        if column.kind == "json":
            return None
        is_text = column.kind == "string"  # the kind of all texts of users
        return f"({column.name}({_LOOKUP_CHARS}))" if is_text else f"({column.name})"

    def column_definition(self, column: Column) -> str:
        """Define a column. MySQL needs the default of a JSON column as an expression."""
        if column.default is not None:
            column = column._replace(default=f"({column.default})")
        return super().column_definition(column)


class MySqlExecutor:
    """`Executor` with a pool of pymysql connections."""

    def __init__(self, uri: str) -> None:
        """Check the URI and the driver.

        Args:
            uri: `mysql://USER:PASSWORD@HOST:PORT/DATABASE`.

        Raises:
            ConfigurationError: the URI names no database, or the driver is not installed.
        """
        with extra("mysql", "MySQL needs its driver"):
            import pymysql
        self._uri = uri
        self._address = BackendUri.parse(uri, _OPTIONS)
        if not self._address.path:
            raise ConfigurationError(f"{without_password(uri)!r} names no database: write mysql://USER@HOST/DATABASE")
        self._driver = pymysql
        self._pool = Pool(self._open, self._prepare, self._is_alive, self._close)
        self._version: str | None = None  # the server's, once a connection was opened

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB, known after the first connection."""
        return "mariadb" in (self._version or "").lower()

    @property
    def collation(self) -> str:
        """The collation that compares by code point, including trailing blanks."""
        return "utf8mb4_nopad_bin" if self.is_mariadb else "utf8mb4_0900_bin"

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Lend a connection of the pool."""
        try:
            with self._pool.lease() as connection:
                yield _MySqlConnection(connection, self._driver.Error)
        except (self._driver.Error, OSError) as error:
            message = error.args[1] if len(error.args) > 1 else error
            raise AdapterError(f"MySQL at {without_password(self._uri)} failed: {message}") from error

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    def _open(self) -> Driver[Any]:
        """Open a connection in UTC, with a time limit for locks, and with the SQL mode that statements need."""
        address = self._address
        return self._driver.connect(
            host=address.host,
            port=address.port or 3306,
            user=address.user or None,
            password=address.password,
            database=address.path,
            charset="utf8mb4",
            autocommit=True,
            local_infile=True,
            connect_timeout=_CONNECT_SECONDS,
            init_command="SET SESSION time_zone = '+00:00',"
            " sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT',"
            f" innodb_lock_wait_timeout = {_LOCK_SECONDS}, lock_wait_timeout = {_LOCK_SECONDS}",
            read_timeout=_STATEMENT_SECONDS + _CONNECT_SECONDS,
            write_timeout=_STATEMENT_SECONDS + _CONNECT_SECONDS,
            ssl={"ca": address.options["ssl_ca"]} if "ssl_ca" in address.options else None,
        )

    def _prepare(self, connection: Driver[Any]) -> None:
        """Set the isolation level and MariaDB's time limit for statements, and note the server's version."""
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SELECT VERSION()")
            ((self._version,),) = cursor.fetchall()
            if self.is_mariadb:  # MySQL's own limit covers SELECTs only; there `read_timeout` ends a statement
                cursor.execute(f"SET SESSION max_statement_time = {_STATEMENT_SECONDS}")
                # On since MariaDB 11.6.2: two writers of one row would then fail with error 1020 rather than wait.
                if cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
                    cursor.execute("SET SESSION innodb_snapshot_isolation = OFF")

    def _is_alive(self, connection: Driver[Any]) -> bool:
        """Return whether the server still answers on a connection."""
        try:
            connection.ping(reconnect=False)
        except (self._driver.Error, OSError):
            return False
        return True

    def _close(self, connection: Driver[Any]) -> None:
        """Close a connection, which may be lost."""
        with suppress(self._driver.Error, OSError):
            connection.close()


class _MySqlConnection:
    """`Connection` over pymysql; that protocol documents the methods."""

    def __init__(self, connection: Driver[Any], errors: type[pymysql.Error]) -> None:
        self._sql = connection
        self._errors = errors

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        with self._sql.cursor() as cursor:
            return int(cursor.execute(format_placeholders(statement), [_naive(value) for value in values]))

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        with self._sql.cursor() as cursor:
            cursor.execute(format_placeholders(statement), [_naive(value) for value in values])
            return list(cursor.fetchall())

    def query_arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        return arrow_of(self.query(statement, values), schema)

    def column_names(self, table: str) -> list[str]:
        found = self.query(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?"
            " ORDER BY ordinal_position",
            [table],
        )
        return [name for (name,) in found]

    def load_scratch(self, table: str, rows: pa.Table) -> None:
        try:
            self._load_file(table, _lines(rows))
        except self._errors as error:
            if error.args[0] not in _LOCAL_INFILE_DISABLED:
                raise
            self._insert(table, rows)

    def statement_error(self, error: BaseException) -> StatementError | None:
        if not isinstance(error, self._errors) or not self._sql.open or not error.args:
            return None
        code = error.args[0]
        if code in _TRANSACTION_LOST:
            return None
        return StatementError(str(error.args[-1]), code in _VALUE_ERRORS)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._sql.begin()
        try:
            yield
        except BaseException:
            with suppress(self._errors, OSError):
                self._sql.rollback()
            raise
        self._sql.commit()

    def _load_file(self, table: str, lines: bytes) -> None:
        """Load lines with LOAD DATA LOCAL, which reads a file of this machine."""
        with tempfile.NamedTemporaryFile(prefix="lakesync-") as file:
            file.write(lines)
            file.flush()
            # `ESCAPED BY '\'` has one backslash, because the session's mode is NO_BACKSLASH_ESCAPES
            self.execute(
                f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE {table} CHARACTER SET utf8mb4"
                r" FIELDS TERMINATED BY '	' ESCAPED BY '\'" + " LINES TERMINATED BY '\n'"
            )

    def _insert(self, table: str, rows: pa.Table) -> None:
        """Insert rows with ordinary statements, for servers that do not allow LOAD DATA LOCAL."""
        placeholders = ", ".join(["%s"] * rows.num_columns)
        values = [
            [_naive(value) for value in row] for row in zip(*(each.to_pylist() for each in rows.columns), strict=True)
        ]
        with self._sql.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES ({placeholders})", values)


def _lines(rows: pa.Table) -> bytes:
    r"""Encode rows for LOAD DATA: separated by tabs, `\N` for null, special characters escaped."""
    import pyarrow.compute as pc

    columns = [pc.fill_null(_escaped(column), "\\N") for column in rows.columns]
    lines = pc.binary_join_element_wise(*columns, "\t")
    return "\n".join([*lines.to_pylist(), ""]).encode()


def _escaped(column: pa.ChunkedArray) -> Any:
    """Return a column as text for LOAD DATA; nulls stay null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type):
        return pc.strftime(column, "%Y-%m-%d %H:%M:%S")  # Arrow's %S includes the fraction of a second
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8()).cast(pa.string())
    text = column.cast(pa.string())
    if pa.types.is_string(column.type):
        for plain, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n")):
            text = pc.replace_substring(text, plain, escape)
    return text


def _naive(value: Value) -> Value:
    """Drop the time zone of a time, which is UTC like that of the session."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
