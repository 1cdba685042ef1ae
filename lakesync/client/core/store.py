"""The protocol of a client's durable state. The core calls it; `MemoryStore` and `SqliteClientStore` implement it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from lakesync.client.core.records import BulkChanges, Changes, Edit, EditStatus, KnownRow, Position
from lakesync.model.types import RowDelta, RowKey


class ClientStore(Protocol):
    """A client's durable state, beside the app's own rows. Callers may modify every object that they read.

    A settled row is a row without edits. The app's table holds its values, so a store needs to keep only the stamps
    of its columns. For a row with edits, the store also keeps the values that the gateway has.
    """

    def position(self) -> Position:
        """Return the stored position; `Position()` in a new store."""

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """Return these rows as the gateway has them; unknown rows are absent."""

    def older_than(self, generation: int) -> list[RowKey]:
        """Return the known rows of generations from 1 up to, not including, `generation`.

        Rows of named sources have generation 0 and are not returned.
        """

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        """Return edits in order of their numbers.

        Args:
            status: only edits with this status; None for all.
            limit: edits, at most.
        """

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """Return the edits of these rows in order of their numbers; rows without edits are absent."""

    def prepare(self, deltas: Sequence[RowDelta], generation: int) -> tuple[BulkChanges | None, Sequence[RowDelta]]:
        """Select the part of a page that the store applies by itself when it commits, faster than row by row.

        Args:
            deltas: the page's deltas.
            generation: the generation of the page's rows. The result must be that of `rows.apply_page`.

        Returns:
            The store's part, or None if it applies nothing by itself; and the deltas that the core merges.
        """

    def commit(self, changes: Changes) -> None:
        """Store all of the changes, or none if it raises. `changes.bulk` is what `prepare` returned."""
