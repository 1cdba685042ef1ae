"""How statements reach a database: the driver's side of an adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

Value = str | int | datetime | None
"""What stands for a `?`; instants are UTC and know it."""


class Refusal(NamedTuple):
    """An error of the database that leaves the connection usable once the statement is undone."""

    reason: str
    """What the database said, without a password."""
    of_values: bool
    """It refuses a value of a row; without that value the statement may succeed."""


class Connection(Protocol):
    """One connection; each statement is a transaction of its own unless one is open."""

    def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement; how many rows it changed."""

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """Run a query that finds little."""

    def arrow(self, statement: str, values: Sequence[Value], schema: pa.Schema) -> pa.Table:
        """Run a query that may find much: strings and 64-bit integers, none of them null, as the schema names them."""

    def columns(self, table: str) -> list[str]:
        """The names of a table's columns."""

    def load(self, table: str, rows: pa.Table) -> None:
        """Add rows to a scratch table by the quickest way there is.

        Columns have the scratch table's names and order: strings, 64-bit integers, booleans and
        `timestamp("ms", "UTC")`, nulls among them; numbers and JSON come as text.
        """

    def refusal(self, error: BaseException) -> Refusal | None:
        """What an error says of a statement; None if it is not the database's, or the connection is lost."""

    def transaction(self) -> AbstractContextManager[None]:
        """All statements within, or none. What others have committed when the first query begins is seen."""


@runtime_checkable
class Appending(Protocol):
    """A `Connection` that has a way to add many rows without a scratch table."""

    def append(self, table: str, columns: Sequence[str], rows: Iterator[pa.Table]) -> bool:
        """Add rows straight to a table, within the caller's transaction, unless a unique key is in the way.

        Args:
            table: of texts and 64-bit integers alone.
            columns: of the rows.
            rows: in parts, each made ready while the one before it travels; integers are not null.

        Returns:
            Whether they were added; where not, none was, and the transaction goes on.
        """


@runtime_checkable
class Hashing(Protocol):
    """A `Connection` that can read many ids in half their size."""

    def hashes(self, statement: str, values: Sequence[Value]) -> pa.FixedSizeBinaryArray | None:
        """What 64 hexadecimal digits a row say: `arrow.hashes_of` a query's column `id`, of texts no longer than that.

        Returns:
            None where a row has something else.
        """


class Executor(Protocol):
    """Makes connections, keeps them for the next, and is safe between threads."""

    def connect(self) -> AbstractContextManager[Connection]:
        """A connection for as long as the `with` lasts: a live one, also after the database was started again.

        A second one may be asked for meanwhile, by the same thread too, and reads beside a transaction of the first.

        Raises:
            AdapterError: whatever the driver raises within, saying which database and what went wrong.
        """

    def close(self) -> None:
        """Close every connection."""


def arrow_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows that a driver gives one by one, as `Connection.arrow` wants them."""
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
