"""A `ClientStore` in memory, for tests and for apps that keep nothing after the process ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

import msgspec
from msgspec import Raw

from lakesync.client.core.records import SOURCE_GENERATION, Changes, Edit, EditStatus, KnownRow, Position
from lakesync.model.merge import decode_state, encode_state
from lakesync.model.types import RowDelta, RowKey


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
