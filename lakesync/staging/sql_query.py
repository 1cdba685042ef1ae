"""The base class of code that runs the same SQL statements on SQLite and on Postgres.

`side_tables`, `erasures` and `restored_log` contain such statements. The views and commits of both stores inherit from
them and implement `_query`.
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
            statement: SQL that both SQLite and Postgres understand, with `?` for each value. The first value is the
                gateway's id.
            values: the other values, in order.

        Returns:
            The rows; empty for a statement that returns none.
        """
