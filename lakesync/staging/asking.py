"""Statements that every kind of store understands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Asking(ABC):
    """A reading or a work of one gateway that can run a statement on the log's side of its store."""

    @abstractmethod
    def _ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement whose first value is the gateway and whose others are `values`; the rows of a SELECT.

        Statements have `?` in place of each value, and only what both SQLite and Postgres have.
        """
