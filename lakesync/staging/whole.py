"""Feed entries with their rows, already encoded as the JSON of a page: a pull sends most rows this way.

`View.whole_rows` returns them. SQLite stores rows in this form, Postgres encodes them when they are read.
"""

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
    """A feed entry, and its row encoded for a client that lacks all of it."""

    table: str
    row_id: str
    first: int
    since: int
    left_before: int
    changed: int
    inside: bool
    spelled: bytes | None
    """The output of `wire.encoded.encode_row`; None if the row is not visible, or the store has not encoded it yet."""
    deltas: int
    """Number of deltas in `spelled`."""
    writers: bytes
    """A JSON array of the client ids in `StoredRow.writers`."""
    writers_floor: int

    @property
    def key(self) -> RowKey:
        """Table and row id."""
        return (self.table, self.row_id)

    def of_row(self, row: StoredRow) -> WholeRow:
        """Return the entry with another version of its row."""
        spelled, deltas, writers, floor = spelled_of(row.fold())
        return self._replace(spelled=spelled, deltas=deltas, writers=writers, writers_floor=floor)


def spell_client(client_id: str) -> bytes:
    """Return a client id as it appears in `WholeRow.writers`."""
    return _encode(client_id)


def spell_writers(row: StoredRow) -> bytes:
    """Return `WholeRow.writers` of a row."""
    return _encode(list(row.writers))


def spelled_of(row: StoredRow, live: list[LiveDelta] | None = None) -> tuple[bytes | None, int, bytes, int]:
    """Return the fields of a `WholeRow` that come from its row: spelled, deltas, writers, writers_floor.

    Args:
        row: the row.
        live: `row.state.live`, if the caller has it.
    """
    spelled, deltas = encode_row(row.table, row.row_id, row.state, live) if row.state.visible else (None, 0)
    return spelled, deltas, spell_writers(row), row.writers_floor


def whole_rows(entries: Iterable[Entry], rows: Mapping[RowKey, StoredRow]) -> list[WholeRow]:
    """Return entries with their rows, for a store that does not keep rows encoded.

    Args:
        entries: in the order of the feed.
        rows: the rows of the entries, by key.
    """
    found = []
    for entry in entries:
        row = rows.get(entry.key)
        history = (entry.first, entry.since, entry.left_before, entry.changed)
        spelled, deltas, writers, floor = spelled_of(row) if row is not None else (None, 0, b"[]", 0)
        found.append(WholeRow(*entry.key, *history, entry.inside, spelled, deltas, writers, floor))
    return found
