"""The protocol of what must outlive the process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from lakesync.client.core.records import BulkChanges, Changes, Edit, EditStatus, KnownRow, Position
from lakesync.model.types import RowDelta, RowKey


class ClientStore(Protocol):
    """A client's durable state, beside the app's own rows. Everything read is the caller's to change.

    A settled row, one without edits, is in the app's table with the very values that it is known by: a store need keep
    no more of it than the stamps of its columns. The values under a row's edits are kept apart until it is settled.
    """

    def position(self) -> Position:
        """Where the client stands; `Position()` in a new store."""

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """What the gateway is known to have of these rows; a row of which nothing is known is absent."""

    def older_than(self, generation: int) -> list[RowKey]:
        """Known rows of generations from 1 up to, not including, `generation`."""

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        """Edits, of one status or all, by number; the first `limit`."""

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """The edits of these rows, whatever their status, by number; rows without are absent."""

    def prepare(self, deltas: Sequence[RowDelta], generation: int) -> tuple[BulkChanges | None, Sequence[RowDelta]]:
        """Cut a page into changes that the store makes by itself when it commits, and deltas to be merged by the core.

        Its own part must come to the same as `apply_page`; None: no row at all.
        """

    def commit(self, changes: Changes) -> None:
        """Make all of the changes durable, or none."""
