"""A client's durable state: the protocol `ClientStore`, and `MemoryStore`, which keeps the state in memory.

The core calls it. `SqliteClientStore` implements it in the app's file; `MemoryStore` is for tests and for apps that
keep nothing after the process ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Protocol

import msgspec
from msgspec import Raw

from lakesync.client.core.records import SOURCE_GENERATION, BulkChanges, Changes, Edit, EditStatus, KnownRow, Position
from lakesync.model.merge import decode_state, encode_state
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


class MemoryStore:
    """Implements `ClientStore`. Row states are kept encoded, so that callers cannot modify them by accident."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, dict[str, bytes]] = {}
        """The app's rows: the JSON text of each column."""
        self._position = Position()
        self._known: dict[RowKey, tuple[bytes, int]] = {}
        self._edits: dict[int, Edit] = {}

    def position(self) -> Position:
        """See `ClientStore.position`."""
        return self._position

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """See `ClientStore.known`."""
        stored = {key: self._known[key] for key in keys if key in self._known}
        return {key: KnownRow(decode_state(state), generation) for key, (state, generation) in stored.items()}

    def older_than(self, generation: int) -> list[RowKey]:
        """See `ClientStore.older_than`."""
        return [
            key for key, (_, row_generation) in self._known.items() if SOURCE_GENERATION < row_generation < generation
        ]

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        """See `ClientStore.edits`."""
        ordered = (self._edits[number] for number in sorted(self._edits))
        return list(islice((edit for edit in ordered if status is None or edit.status == status), limit))

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """See `ClientStore.edits_of`."""
        result: dict[RowKey, list[Edit]] = {}
        for edit in self.edits():
            if edit.delta.key in keys:
                result.setdefault(edit.delta.key, []).append(edit)
        return result

    def prepare(self, deltas: Sequence[RowDelta], generation: int) -> tuple[None, Sequence[RowDelta]]:  # noqa: ARG002
        """Leave the whole page to the core. See `ClientStore.prepare`."""
        return None, deltas

    def commit(self, changes: Changes) -> None:
        """See `ClientStore.commit`."""
        if changes.position is not None:
            self._position = changes.position
        for key, known in changes.known.items():
            if known is None:
                self._known.pop(key, None)
            else:
                self._known[key] = (encode_state(known.state), known.generation)
        for key, values in changes.rows.items():
            if values is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = {column: bytes(value) for column, value in values.items()}
        for number, edit in changes.edits.items():
            if edit is None:
                self._edits.pop(number, None)
            else:
                self._edits[number] = edit

    def values(self, table: str, row_id: str) -> dict[str, object] | None:
        """Return an app's row with decoded values; None if it does not exist.

        Args:
            table: the row's table.
            row_id: the row's id.
        """
        row = self.rows.get((table, row_id))
        return None if row is None else {column: msgspec.json.decode(Raw(text)) for column, text in row.items()}
