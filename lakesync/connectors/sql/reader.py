"""What `SqlSource` needs of a database: the protocols `Reader` and `Snapshot`.

`SqlSource` polls the results of the user's queries. The readers of Postgres, MySQL and BigQuery implement the
protocols.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from lakesync.connectors.sql.cursor_column import AgeHorizon, TransactionHorizon
from lakesync.model.schema import ColumnType

ROWS_PER_PAGE = 5_000
"""Rows that a reader fetches and `SqlSource` returns at once, at most."""


class Column(NamedTuple):
    """A column of a query's result."""

    name: str
    type: ColumnType


class Snapshot(Protocol):
    """A view of a database in which all queries see the same data, as far as the database supports it."""

    @property
    def horizon(self) -> TransactionHorizon | AgeHorizon | None:
        """Which changes of open transactions the snapshot may not see; None if the database does not report it."""

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query's result, without reading rows."""

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
    """Replace the placeholder `?` with `%s`, that of psycopg and pymysql, and escape other `%`.

    Placeholders follow after `(QUERY) polled`, with which statements of `SqlSource` contain the user's query. A `?`
    before that belongs to the query, for example to an operator of Postgres.
    """
    query, separator, rest = statement.rpartition(") polled")
    return query.replace("%", "%%") + separator + rest.replace("%", "%%").replace("?", "%s")
