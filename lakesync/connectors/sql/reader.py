"""What `SqlSource` needs of a database: the protocols `Reader` and `Snapshot`, and their values as JSON.

`SqlSource` polls the results of the user's queries. The readers of Postgres, MySQL and BigQuery implement the
protocols, and return values as their drivers do. `SqlSource` converts every value of a row by `to_json_value`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import ColumnType

ROWS_PER_PAGE = 5_000
"""Rows that a reader fetches and `SqlSource` returns at once, at most."""
_MAX_EXACT_INTEGER = 2**53
"""Up to here, every integer can be represented as a double."""


class Column(NamedTuple):
    """A column of a query's result."""

    name: str
    type: ColumnType


class ResultPage(NamedTuple):
    """A page of a statement's result."""

    names: list[str]
    """The names of the columns."""
    rows: list[tuple[Any, ...]]
    """At most `ROWS_PER_PAGE` rows, with the driver's values."""


class TransactionHorizon(NamedTuple):
    """Which transactions a snapshot may not see: those that were open when it was taken, and later ones."""

    oldest_open: int
    """All transactions with a lower number have ended."""
    next: int
    """Transactions that start writing from now on get this number or a higher one."""


class AgeHorizon(NamedTuple):
    """Which changes a snapshot may not see, for a database that reports only how old its open transactions are."""

    seconds: float
    """Changes that the snapshot does not see are at most so many seconds older than the newest change that it sees."""


class Snapshot(Protocol):
    """A view of a database in which all queries see the same data, as far as the database supports it."""

    @property
    def horizon(self) -> TransactionHorizon | AgeHorizon | None:
        """Which changes of open transactions the snapshot may not see; None if the database does not report it."""

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query's result, without reading rows."""

    def query_pages(self, statement: str, values: Sequence[Any] = ()) -> Iterator[ResultPage]:
        """Yield the pages of a statement's result.

        Args:
            statement: the SQL, with `?` as the placeholder for a value.
            values: the values.
        """


class Reader(Protocol):
    """Opens snapshots of a database."""

    database: str
    """The database's address and name, without credentials."""

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
        """Return a SQL expression that casts another one to text."""

    def close(self) -> None:
        """Close all connections."""


def format_placeholders(statement: str) -> str:
    """Replace the placeholder `?` with `%s`, that of psycopg and pymysql, and escape other `%`.

    `SqlSource` embeds the user's query as `(QUERY) polled`, and its placeholders come after that. A `?` before that
    belongs to the query, for example to an operator of Postgres.
    """
    query, separator, rest = statement.rpartition(") polled")
    return query.replace("%", "%%") + separator + rest.replace("%", "%%").replace("?", "%s")


def to_json_value(value: Any, column: str) -> Any:
    """Convert a value: times to ISO 8601, bytes to base64. A date and time with a zone is converted to UTC.

    Args:
        value: the driver's value. NaN and infinite numbers become null.
        column: its column, for the message.

    Raises:
        ConfigurationError: a number cannot be represented exactly as a double, in which JSON readers store numbers.
    """
    match value:
        case None | bool() | str():
            return value
        case int() if abs(value) <= _MAX_EXACT_INTEGER:
            return value
        case float():
            return value if math.isfinite(value) else None
        case int() | Decimal():
            return _decimal(Decimal(value), column)
        case datetime():
            return format_time(value)
        case date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()
        case list() | tuple():
            return [to_json_value(each, column) for each in value]
        case Mapping():
            return {str(name): to_json_value(each, column) for name, each in value.items()}
    return str(value)


def format_time(value: datetime) -> str:
    """Format a time as ISO 8601, with `Z` if it has a time zone."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def _decimal(value: Decimal, column: str) -> float | int | None:
    """Convert a decimal, or a large integer, as `to_json_value` does."""
    if not value.is_finite():
        return None
    double = float(value)
    if Decimal(repr(double)) != value:
        raise ConfigurationError(
            f"column {column!r} has {value}, which a JSON number cannot represent exactly: cast it to text in the query"
        )
    return int(double) if double.is_integer() and abs(double) <= _MAX_EXACT_INTEGER else double
