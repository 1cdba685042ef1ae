"""A store that lives as long as the process, for tests and for apps that keep nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

import msgspec
from msgspec import Raw

from lakesync.client.core.records import UNSWEPT, Changes, Edit, EditStatus, KnownRow, Position
from lakesync.model.merge import decode_state, encode_state
from lakesync.model.types import RowDelta, RowKey


class MemoryStore:
    """Keeps states encoded, so that nothing outside can change them; implements `ClientStore`."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, dict[str, bytes]] = {}
        """The app's rows: each column's JSON text."""
        self._position = Position()
        self._known: dict[RowKey, tuple[bytes, int]] = {}
        self._edits: dict[int, Edit] = {}

    def position(self) -> Position:
        """Where the client stands."""
        return self._position

    def known(self, keys: Collection[RowKey]) -> dict[RowKey, KnownRow]:
        """What the gateway is known to have of these rows."""
        found = {key: self._known[key] for key in keys if key in self._known}
        return {key: KnownRow(decode_state(state), generation) for key, (state, generation) in found.items()}

    def older_than(self, generation: int) -> list[RowKey]:
        """Known rows of older generations."""
        return [key for key, (_, made) in self._known.items() if UNSWEPT < made < generation]

    def edits(self, status: EditStatus | None = None, limit: int | None = None) -> list[Edit]:
        """Edits, by number."""
        found = (self._edits[number] for number in sorted(self._edits))
        return list(islice((edit for edit in found if status is None or edit.status == status), limit))

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """The edits of these rows."""
        found: dict[RowKey, list[Edit]] = {}
        for edit in self.edits():
            if edit.delta.key in keys:
                found.setdefault(edit.delta.key, []).append(edit)
        return found

    def prepare(self, deltas: Sequence[RowDelta], generation: int) -> tuple[None, Sequence[RowDelta]]:  # noqa: ARG002
        """Nothing: the core merges it all."""
        return None, deltas

    def commit(self, changes: Changes) -> None:
        """Keep all of the changes."""
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
        """An app's row as Python values; None where it is not there."""
        row = self.rows.get((table, row_id))
        return None if row is None else {column: msgspec.json.decode(Raw(text)) for column, text in row.items()}
