"""What a SQL backend implements for `SqlAdapter`: a `Dialect`, its SQL, and an `Executor`, its driver's connections.

`SqlAdapter` stores *deltas* (changes of rows) in a table, and keeps *destination tables* with the current rows of
synced tables. It loads a batch into a *scratch table* (a temporary one) first, and merges it from there into the
others. Each database in `adapters/backends` has a subclass of `Dialect` and an implementation of `Executor`. Those of
Postgres, MySQL and SQLite use `Pool`; BigQuery has no connections that can be reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from queue import Empty, Full, LifoQueue
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["id", "name", "text", "integer", "string", "number", "boolean", "json", "time"]
"""The kind of values in a column.

`id` and `name`: text of at most 512 and 64 characters, compared by code point including trailing blanks, usable in a
key. `text`: text of any length. `integer`: signed, 64 bits. For synced columns, in destination tables only: `string`
(text of any length), `number` (loaded as JSON text), `boolean`, `json` (loaded as text), `time` (UTC, milliseconds).
"""


class Column(NamedTuple):
    """A column of a table to create."""

    name: str
    kind: Kind
    required: bool = True
    """Whether it is NOT NULL."""
    default: str | None = None
    """SQL expression; None for no default."""


def on_conflict_statement(
    table: str, columns: Sequence[str], rows: str, key: Sequence[str], update: Sequence[str]
) -> str:
    """Return an INSERT … ON CONFLICT, which Postgres and SQLite have.

    Args:
        table: the table to merge into.
        columns: the columns to write.
        rows: the FROM clause of the rows to insert, with all clauses after it. They have these columns in this order.
        key: columns of the primary key.
        update: columns to replace in an existing row; empty leaves existing rows unchanged.
    """
    names = ", ".join(columns)
    action = f"UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in update)}" if update else "NOTHING"
    into = f"{table} AS _lakesync_into"  # because the table itself may be called `excluded`
    # not `SELECT {names}`: SQLite renames the columns "true" and "false" of a subquery
    return f"INSERT INTO {into} ({names}) SELECT * {rows} ON CONFLICT ({', '.join(key)}) DO {action}"


class Dialect:
    """SQL statements and expressions of one database. `?` is the placeholder for a value in every statement.

    A subclass implements `column_type`, `create_scratch`, `merge_statement` and `checksum_expression`, and overrides
    other methods where the database differs.
    """

    has_transactions = True
    """Whether several statements can be committed atomically. If not, the mark (how far the lake was copied) is written
    last."""
    commits_each_definition = False
    """Whether each CREATE and ALTER is committed alone. Then one statement creates a table with its indexes, so that
    no kill separates them."""
    table_options = ""
    """What follows the columns in CREATE TABLE."""
    concurrent_writers = False
    """Whether transactions on different rows run concurrently. If so, large backlogs are divided among tasks."""
    ignores_case_of_tables = False
    """Whether names of tables that differ only in case name the same table."""
    max_json_depth: int | None = None
    """The nesting limit of a `json` column; None: no limit."""
    max_name_chars: int | None = None
    """Characters beyond which the database silently cuts a name; None if it does not, or allows every schema's names.
    """

    ignores_case_of_columns = False
    """Whether two names of columns that differ only in case name one column."""

    def folded(self, name: str) -> str:
        """Return a column's name so that two names are equal if they name one column."""
        return name.lower() if self.ignores_case_of_columns else name

    def column_type(self, kind: Kind) -> str:
        """Return the SQL type of a column."""
        raise NotImplementedError

    def create_scratch(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> Sequence[str]:
        """Return statements that create an empty table visible to this connection only, replacing an existing one.

        Args:
            name: the scratch table's name.
            columns: its columns.
            key: the columns by which rows are unique and looked up.
        """
        raise NotImplementedError

    def merge_statement(
        self, table: str, scratch: str, columns: Sequence[str], key: Sequence[str], update: Sequence[str]
    ) -> str:
        """Return the statement that inserts the rows of a scratch table into another table, or updates existing ones.

        Args:
            table: the target, quoted; unique by `key`.
            scratch: the source: a table name, or a query in parentheses that needs an alias. It may contain a key twice
                only if `update` is empty.
            columns: the columns to merge, quoted; those of the source, in its order.
            key: quoted. A conflict with another unique key must fail.
            update: the columns, quoted, to update in existing rows; empty leaves existing rows unchanged.
        """
        raise NotImplementedError

    def quote(self, name: str) -> str:
        """Quote an identifier chosen by the user."""
        return f'"{name}"'

    def checksum_expression(self, text: str) -> str:
        """Return an integer expression: the first 32 bits of the MD5 of a text's UTF-8 bytes.

        Every database can compute it, so it is compared with the same checksum in the lake.

        Args:
            text: a SQL expression, never null.
        """
        raise NotImplementedError

    def text_expression(self, column: Column) -> str:
        """Return a SQL expression for a column's value as text; null stays null.

        A value must have the same text in a scratch table and in the destination table.
        """
        return f"CAST({column.name} AS TEXT)"

    def integer_division(self, number: str, by: int) -> str:
        """Return a SQL expression for an integer quotient.

        Args:
            number: a SQL expression for a positive integer.
            by: the positive divisor.
        """
        return f"({number} / {by})"

    def create_table(
        self, name: str, columns: Sequence[Column], key: Sequence[str], indexes: Mapping[str, str] | None = None
    ) -> Sequence[str]:
        """Return statements that create a table and its indexes if they do not exist.

        Args:
            name: quoted, like all other names.
            columns: the table's columns.
            key: the primary key.
            indexes: name of each further index → what it indexes, as CREATE INDEX expects it.
        """
        parts = [self.column_definition(column) for column in columns]
        parts.append(f"PRIMARY KEY ({', '.join(key)})")
        create, indexes = f"CREATE TABLE IF NOT EXISTS {name}", indexes or {}
        if self.commits_each_definition:
            parts += [f"INDEX {index} {indexed}" for index, indexed in indexes.items()]
            return [f"{create} ({', '.join(parts)})"]
        return [f"{create} ({', '.join(parts)}){self.table_options}", *self._create_indexes(name, indexes)]

    def add_column(self, table: str, column: Column, indexes: Mapping[str, str]) -> Sequence[str]:
        """Return statements that add a column and its indexes to a table.

        Args:
            table: quoted.
            column: the column, its name quoted.
            indexes: as for `create_table`.
        """
        add = f"ALTER TABLE {table} ADD COLUMN {self.column_definition(column)}"
        if self.commits_each_definition:
            return [", ".join([add, *(f"ADD INDEX {index} {indexed}" for index, indexed in indexes.items())])]
        return [add, *self._create_indexes(table, indexes)]

    def lookup_index(self, column: Column) -> str | None:
        """Return what to index for equality on values of any length; None if the database cannot.

        Args:
            column: the column, its name quoted.
        """
        return f"({column.name})"

    def column_definition(self, column: Column) -> str:
        """Return a column's definition for CREATE TABLE or ADD COLUMN."""
        default = f" DEFAULT {column.default}" if column.default is not None else ""
        not_null = " NOT NULL" if column.required else ""
        return f"{column.name} {self.column_type(column.kind)}{not_null}{default}"

    def _create_indexes(self, table: str, indexes: Mapping[str, str]) -> list[str]:
        """Return statements that create indexes; see `create_table` for the parameters."""
        return [f"CREATE INDEX IF NOT EXISTS {index} ON {table} {indexed}" for index, indexed in indexes.items()]


Value = str | int | datetime | None
"""A statement parameter. Datetimes are aware and in UTC."""

C = TypeVar("C")
"""The driver's type of a connection."""

_MAX_IDLE = 4
"""Idle connections that are kept; further ones are closed after use. The number of connections in use has no limit."""


class StatementError(NamedTuple):
    """A database error after which the connection is usable once the statement is rolled back."""

    reason: str
    """The database's message, without passwords."""
    is_value_error: bool
    """Whether the database rejected a value of a row, so that the statement may succeed without it."""


class Connection(Protocol):
    """One connection. Without an open transaction each statement commits on its own."""

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Execute a statement and return the number of rows changed."""

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """Execute a query with a small result."""

    def query_arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        """Execute a query with a large result.

        Args:
            statement: the query. Its columns are named as in the schema.
            values: the query's parameters.
            schema: the result's columns: strings and 64-bit integers, without nulls.
        """

    def column_names(self, table: str) -> list[str]:
        """Return the names of a table's columns; empty if there is no such table."""

    def load_scratch(self, table: str, rows: pa.Table) -> None:
        """Append rows to a scratch table by the driver's fastest path.

        Args:
            table: the scratch table.
            rows: the rows to append, with the scratch table's columns in its order: strings, 64-bit integers, booleans
                and `timestamp("ms", "UTC")`, with nulls. Numbers and JSON are passed as text.
        """

    def statement_error(self, error: BaseException) -> StatementError | None:
        """Classify an error that a statement raised, so that the caller can go on without the row or table.

        Returns:
            The error; None if it is not the database's error, or if the connection or the transaction is lost.
        """

    def transaction(self) -> AbstractContextManager[None]:
        """Run the statements of a `with` block atomically. Its first query sees everything committed before."""


@runtime_checkable
class DirectAppend(Protocol):
    """A `Connection` that can append many rows without a scratch table."""

    def append(self, table: str, columns: Sequence[str], rows: Iterator[pa.Table]) -> bool:
        """Append rows to a table within the caller's transaction, unless a unique key conflicts.

        Args:
            table: the table, which has only text and 64-bit integer columns.
            columns: the names of the rows' columns.
            rows: chunks of rows. A chunk is encoded while the previous one is sent. Integers must not be null.

        Returns:
            Whether all rows were appended. If not, none was, and the transaction remains open.
        """


@runtime_checkable
class HashReader(Protocol):
    """A `Connection` that can read hexadecimal delta ids as bytes, which halves the transfer."""

    def read_hashes(self, statement: str, values: Sequence[Value]) -> pa.FixedSizeBinaryArray | None:
        """Return the ids that a query selects, as 32 bytes each.

        Args:
            statement: a query with one column `id`, whose texts have at most 64 characters.
            values: the query's parameters.

        Returns:
            The ids; None if any of them is not a hash of 64 hexadecimal digits.
        """


class Executor(Protocol):
    """Opens and pools connections. Safe to use from several threads."""

    def connect(self) -> AbstractContextManager[Connection]:
        """Return a live connection for the duration of a `with` block, also after a restart of the database.

        The same thread may request a second connection meanwhile, which is independent of the first one's transaction.

        Raises:
            AdapterError: any driver error raised inside the block; names the database and the cause.
        """

    def close(self) -> None:
        """Close every connection."""


def load_scratch_table(
    connection: Connection, dialect: Dialect, name: str, columns: Sequence[Column], key: Sequence[str], rows: pa.Table
) -> None:
    """Create a scratch table, in place of an existing one, and load rows into it.

    Args:
        connection: an open connection.
        dialect: the database's dialect.
        name: the scratch table's name.
        columns: its columns, their names quoted if the user chose them.
        key: the columns by which rows are unique, quoted likewise.
        rows: the rows, as `Connection.load_scratch` reads them.
    """
    for statement in dialect.create_scratch(name, columns, key):
        connection.execute(statement)
    connection.load_scratch(name, rows)


def format_placeholders(statement: str) -> str:
    """Replace `?` with `%s`, the placeholder of psycopg and pymysql. Statements contain no literal `?`."""
    return statement.replace("%", "%%").replace("?", "%s")


def arrow_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Convert rows to an Arrow table, for drivers that return rows one by one.

    Args:
        rows: tuples in the schema's order.
        schema: names and types of the columns.
    """
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


class Pool(Generic[C]):
    """Lends each connection to one user at a time. Safe to use from several threads.

    A connection whose use failed is closed, because its state is unknown. An idle one is checked before it is reused.
    """

    def __init__(
        self,
        make: Callable[[], C],
        prepare: Callable[[C], None],
        is_alive: Callable[[C], bool],
        close: Callable[[C], None],
    ) -> None:
        """Create an empty pool.

        Args:
            make: opens a connection.
            prepare: makes the settings of a new connection; if it fails, the connection is closed.
            is_alive: returns whether an idle connection can be used.
            close: closes a connection; never raises.
        """
        self._make = make
        self._prepare = prepare
        self._is_alive = is_alive
        self._close = close
        self._idle: LifoQueue[C] = LifoQueue(_MAX_IDLE)

    @contextmanager
    def lease(self) -> Iterator[C]:
        """Lend a connection for the duration of a `with` block."""
        idle = self._take_idle()
        connection = self._make() if idle is None else idle
        try:
            if idle is None:
                self._prepare(connection)
            yield connection
        except BaseException:
            self._close(connection)
            raise
        try:
            self._idle.put_nowait(connection)
        except Full:
            self._close(connection)

    def close(self) -> None:
        """Close the idle connections."""
        with suppress(Empty):
            while True:
                self._close(self._idle.get_nowait())

    def _take_idle(self) -> C | None:
        """Return an idle connection that is still alive, or None; close the dead ones."""
        with suppress(Empty):
            while not self._is_alive(connection := self._idle.get_nowait()):
                self._close(connection)
            return connection
        return None
