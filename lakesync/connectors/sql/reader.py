"""How a database is read: what each driver does in its own way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from lakesync.model.schema import ColumnType

PAGE = 5_000
"""Rows that are held at once."""


class Horizon(NamedTuple):
    """What a reading cannot have seen: changes by transactions that were open, or not begun, when it began."""

    oldest_open: int
    """Every transaction with a lower number has ended."""
    next: int
    """Every transaction that begins to write from now on has this number or a higher one."""


class Unseen(NamedTuple):
    """The same where a database tells ages alone."""

    seconds: float
    """What it cannot have seen was stamped by the database's clock at most so long before the newest that it saw."""


class Column(NamedTuple):
    """A column of a query."""

    name: str
    type: ColumnType


class Reading(Protocol):
    """One consistent reading of a database, as it is at its begin as far as the database can tell."""

    @property
    def horizon(self) -> Horizon | Unseen | None:
        """What it cannot have seen; None where the database does not tell."""

    def columns(self, query: str) -> list[Column]:
        """The columns of a query, which is not run."""

    def pages(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
        """Names of columns, and rows, at most PAGE at a time, never all at once; `?` stands for a value."""


class Reader(Protocol):
    """A database."""

    def reading(self) -> AbstractContextManager[Reading]:
        """A reading, for as long as the `with` lasts.

        Raises:
            AuthError, ForbiddenError: the database does not know, or does not let, the user.
            ConfigurationError: it refuses a query.
            AdapterError: it cannot be reached, or failed.
        """

    def quoted(self, name: str) -> str:
        """A name of a column as the database has it in SQL."""

    def text(self, expression: str) -> str:
        """A value as text, in SQL."""

    def close(self) -> None:
        """Give back what it holds."""
