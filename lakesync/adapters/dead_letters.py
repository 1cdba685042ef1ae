"""Values that a destination's table of rows cannot take: kept beside it, listed and retried by `lakesync dlq`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

WHOLE_ROW = ""
"""In place of a column's name: the database refuses the row whatever its values are."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A value that is null in its row, or a row that is not written, and why."""

    gateway: str
    table: str
    row_id: str
    column: str
    """Or `WHOLE_ROW`."""
    value: str
    """Its JSON text."""
    reason: str


class SetAside(msgspec.Struct, frozen=True):
    """A table of rows that could not be written; its deltas are kept, and its rows are written once it can be."""

    table: str
    reason: str
    failures: int
    """Attempts in a row that failed."""
    retry_ms: int
    """When the next attempt is due, milliseconds since 1970."""


@runtime_checkable
class Isolating(Protocol):
    """A destination that continues without a table, or a value, that it cannot write."""

    def set_aside(self, follower: str) -> list[SetAside]:
        """Return the tables that a follower continues without."""

    def put_aside(self, follower: str, table: str, reason: str) -> SetAside:
        """Continue without a table; each further failure doubles the pause before the next attempt.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def bring_back(self, follower: str, table: str) -> None:
        """Write a table again with each batch: all of its rows have been written.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def retry_now(self, follower: str, tables: Sequence[str]) -> None:
        """Have the follower's next run write all rows of tables, whether or not they are set aside.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the values that do not fit, of every table, ordered by table, gateway, row and column.

        Raises:
            AdapterError: the backend cannot be reached.
        """
