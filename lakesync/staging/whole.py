"""Entries of the feed together with their rows, ready to be sent whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from lakesync.model.merge import LiveDelta
from lakesync.model.types import RowKey
from lakesync.staging.records import Entry, StoredRow
from lakesync.wire.encoded import encode_row

_encode = msgspec.json.Encoder().encode


class WholeRow(NamedTuple):
    """An entry, and what sending its row whole needs."""

    table: str
    row_id: str
    first: int
    since: int
    left_before: int
    changed: int
    inside: bool
    spelled: bytes | None
    """`wire.encoded.encode_row`; None where the row is not visible, or the store has not spelled it yet."""
    deltas: int
    """How many deltas that is."""
    writers: bytes
    """A JSON array of the clients in `StoredRow.writers`."""
    writers_floor: int

    @property
    def key(self) -> RowKey:
        """The row's place."""
        return (self.table, self.row_id)

    def of_row(self, row: StoredRow) -> WholeRow:
        """The entry with another version of its row."""
        spelled, deltas, writers, floor = spelled_of(row.fold())
        return self._replace(spelled=spelled, deltas=deltas, writers=writers, writers_floor=floor)


def spell_client(client_id: str) -> bytes:
    """A client id as it stands in `WholeRow.writers`."""
    return _encode(client_id)


def spell_writers(row: StoredRow) -> bytes:
    """`WholeRow.writers` of a row."""
    return _encode(list(row.writers))


def spelled_of(row: StoredRow, live: list[LiveDelta] | None = None) -> tuple[bytes | None, int, bytes, int]:
    """What a `WholeRow` holds of its row: spelled, deltas, writers, writers_floor.

    Args:
        row: the row.
        live: `row.state.live`, where the caller has it.
    """
    spelled, deltas = encode_row(row.table, row.row_id, row.state, live) if row.state.visible else (None, 0)
    return spelled, deltas, spell_writers(row), row.writers_floor


def whole_rows(entries: Iterable[Entry], rows: Mapping[RowKey, StoredRow]) -> list[WholeRow]:
    """Entries with their rows, for a store that keeps no spelled ones."""
    found = []
    for entry in entries:
        row = rows.get(entry.key)
        history = (entry.first, entry.since, entry.left_before, entry.changed)
        spelled, deltas, writers, floor = spelled_of(row) if row is not None else (None, 0, b"[]", 0)
        found.append(WholeRow(*entry.key, *history, entry.inside, spelled, deltas, writers, floor))
    return found
