"""The protocols `Executor` and `Connection`, by which `SqlAdapter` runs statements, and a connection pool.

Each SQL backend implements the protocols with its driver. The executors of Postgres, MySQL and SQLite use `Pool`; other
backends have no connections that can be reused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

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
        """Classify an error that a statement raised.

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

    def __init__(self, make: Callable[[], C], is_alive: Callable[[C], bool], close: Callable[[C], None]) -> None:
        """Create an empty pool.

        Args:
            make: opens a connection.
            is_alive: returns whether an idle connection can be used.
            close: closes a connection; never raises.
        """
        self._make = make
        self._is_alive = is_alive
        self._close = close
        self._idle: list[C] = []
        self._lock = threading.Lock()

    @contextmanager
    def lease(self) -> Iterator[C]:
        """Lend a connection for the duration of a `with` block."""
        connection = self._take_idle() or self._make()
        try:
            yield connection
        except BaseException:
            self._close(connection)
            raise
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        self._close(connection)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

    def _take_idle(self) -> C | None:
        """Return an idle connection that is still alive; None if there is none. Dead ones are closed."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._is_alive(connection):
                return connection
            self._close(connection)
