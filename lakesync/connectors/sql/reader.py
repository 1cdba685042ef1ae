"""The interface of a database driver for SQL sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from lakesync.model.schema import ColumnType

ROWS_PER_PAGE = 5_000
"""Rows held at once."""


class TransactionHorizon(NamedTuple):
    """Which transactions a snapshot cannot have seen completely."""

    oldest_open: int
    """All transactions with a lower number have ended."""
    next: int
    """Transactions that start writing from now on get this number or a higher one."""


class AgeHorizon(NamedTuple):
    """The same for databases that only report the age of transactions."""

    seconds: float
    """Unseen changes were stamped at most this long before the newest seen change, by the database's clock."""


class Column(NamedTuple):
    """A column of a query."""

    name: str
    type: ColumnType


class Snapshot(Protocol):
    """A consistent snapshot of a database, as far as the database supports it."""

    @property
    def horizon(self) -> TransactionHorizon | AgeHorizon | None:
        """What the snapshot cannot have seen; None if the database does not report it."""

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query without running it."""

    def query_pages(
        self, statement: str, values: Sequence[Any] = ()
    ) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
        """Yield column names and at most `ROWS_PER_PAGE` rows; `?` is the placeholder for a value."""


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
        """Return an expression for a value as text."""

    def close(self) -> None:
        """Close all connections."""


def format_placeholders(statement: str) -> str:
    """Replace `?` with the `%s` of psycopg and pymysql, and escape other `%`.

    The user's query is in brackets before `polled`; placeholders come after it.
    """
    head, bracket, tail = statement.rpartition(") polled")
    return head.replace("%", "%%") + bracket + tail.replace("%", "%%").replace("?", "%s")
