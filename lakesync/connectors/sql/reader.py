"""`Reader` and `Snapshot`: what `SqlSource` needs of a database. Postgres, MySQL and BigQuery implement them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from lakesync.model.schema import ColumnType

ROWS_PER_PAGE = 5_000
"""Rows per page."""


class TransactionHorizon(NamedTuple):
    """Which transactions a snapshot may not see: those that were open when it was taken, and later ones."""

    oldest_open: int
    """All transactions with a lower number have ended."""
    next: int
    """Transactions that start writing from now on get this number or a higher one."""


class AgeHorizon(NamedTuple):
    """Which changes a snapshot may not see, for databases that only report the age of open transactions."""

    seconds: float
    """A change that the snapshot does not see has a time of at most this long before the newest change that it sees."""


class Column(NamedTuple):
    """A column of a query's result."""

    name: str
    type: ColumnType


class Snapshot(Protocol):
    """A consistent snapshot of a database, as far as the database supports it."""

    @property
    def horizon(self) -> TransactionHorizon | AgeHorizon | None:
        """Which changes the snapshot may not see; None if the database does not report it."""

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query without running it."""

    def query_pages(
        self, statement: str, values: Sequence[Any] = ()
    ) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
        """Yield the pages of a statement's result, each as the column names and at most `ROWS_PER_PAGE` rows.

        Args:
            statement: the SQL, with `?` as the placeholder for a value.
            values: the values.
        """


class Reader(Protocol):
    """Opens snapshots of a database."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return a snapshot for the duration of a `with` block.

        Raises:
            AuthError, ForbiddenError: the database rejects the user.
            ConfigurationError: the database rejects a query.
            AdapterError: the database cannot be reached, or failed.
        """

    def quoted(self, name: str) -> str:
        """Quote a column name."""

    def text(self, expression: str) -> str:
        """Return a SQL expression for the value of a SQL expression as text."""

    def close(self) -> None:
        """Close all connections."""


def format_placeholders(statement: str) -> str:
    """Replace `?` with the `%s` of psycopg and pymysql, and escape other `%`.

    Only after `(QUERY) polled`: a `?` in the user's query is not a placeholder.
    """
    query, separator, rest = statement.rpartition(") polled")
    return query.replace("%", "%%") + separator + rest.replace("%", "%%").replace("?", "%s")
