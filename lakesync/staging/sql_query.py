"""The base class of code that runs the same SQL statements on SQLite and on Postgres.

`side_tables`, `erasures` and `restored_log` contain such statements. The views (reads) and commits (transactions) of
both stores inherit from their classes, and implement `_query`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class SqlQueries(ABC):
    """A view or commit of one gateway that can run a statement in the database that contains its log."""

    @abstractmethod
    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return the rows of a SELECT.

        Args:
            statement: SQL that both SQLite and Postgres understand, with `?` for each value. The first `?` is for the
                gateway's id, which the implementation adds.
            values: the other values, in order.

        Returns:
            The rows; empty for a statement that returns none.

        Raises:
            sqlite3.Error, psycopg.Error: the statement failed; the store rolls back and maps the error.
        """
