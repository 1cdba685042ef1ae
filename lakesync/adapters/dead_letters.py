"""What a destination cannot write: dead letters (values and rows) and suspended tables, and the protocol for both.

They are stored at the destination, so that the rest can be written. Followers (`lakesync.adapters.transfer.follower`),
the pipeline and `lakesync dlq` call `TableIsolation`; destinations that do not implement it fail as a whole. A follower
writes the lake's deltas to one adapter, and has a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

WHOLE_ROW = ""
"""In place of a column's name, if the database rejects the row even with null in all columns of the schema."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A value that was replaced by null in the destination table, or a row that was not written, with the reason."""

    gateway: str
    table: str
    row_id: str
    column: str
    """A column name, or `WHOLE_ROW`."""
    value: str
    """The rejected value as JSON text; `null` for `WHOLE_ROW`."""
    reason: str
    """The database's message."""


class SuspendedTable(msgspec.Struct, frozen=True):
    """A destination table that could not be written.

    The destination still stores the table's deltas. A successful retry rewrites all rows from them.
    """

    table: str
    reason: str
    failures: int
    """Consecutive failed attempts."""
    retry_ms: int
    """When the next attempt is due, milliseconds since 1970."""


@runtime_checkable
class TableIsolation(Protocol):
    """A `DatabaseAdapter` that continues without tables or values that it cannot write."""

    def suspended_tables(self, follower: str) -> list[SuspendedTable]:
        """Return the follower's suspended tables, also those whose retry is due.

        Args:
            follower: the follower's name.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def suspend_table(self, follower: str, table: str, reason: str) -> SuspendedTable:
        """Suspend a table. Each further failure doubles the pause before the next attempt, from a minute to an hour.

        Args:
            follower: the follower's name.
            table: the synced table.
            reason: why it cannot be written.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def resume_table(self, follower: str, table: str) -> None:
        """End a table's suspension, so that the next batches write to it. The caller has rewritten all of its rows.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def retry_tables(self, follower: str, tables: Sequence[str]) -> None:
        """Make the follower's next run rewrite all rows of these tables, suspended or not.

        Raises:
            AdapterError: the backend cannot be reached.
        """

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the first dead letters of all tables, ordered by table, gateway, row and column.

        There are no pages: the next write of a row replaces its dead letters, so a position would not stay valid.

        Args:
            limit: the most dead letters to return.

        Raises:
            AdapterError: the backend cannot be reached.
        """
