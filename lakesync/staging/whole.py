"""Entries of the feed together with their rows, ready to be sent whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from lakesync.staging.records import Entry, StoredRow
from lakesync.types import RowKey
from lakesync.wire.spelled import spell_row

_encode = msgspec.json.Encoder().encode


class WholeRow(NamedTuple):
    """An entry, and what sending its row whole needs."""

    table: str
    row_id: str
    first: int
    since: int
    left: int
    changed: int
    inside: bool
    spelled: bytes | None
    """`wire.spelled.spell_row`; None where the row is not visible, or the store has not spelled it yet."""
    deltas: int
    """How many deltas that is."""
    writers: bytes
    """A JSON array of the clients in `StoredRow.writers`."""
    writers_floor: int


def spell_client(client_id: str) -> bytes:
    """A client id as it stands in `WholeRow.writers`."""
    return _encode(client_id)


def spell_writers(row: StoredRow) -> bytes:
    """`WholeRow.writers` of a row."""
    return _encode(list(row.writers))


def whole_rows(entries: Iterable[Entry], rows: Mapping[RowKey, StoredRow]) -> list[WholeRow]:
    """Entries with their rows, for a store that keeps no spelled ones."""
    found = []
    for entry in entries:
        row = rows.get(entry.key)
        spelled, count = spell_row(*entry.key, row.state) if row is not None and row.state.visible else (None, 0)
        writers, floor = (spell_writers(row), row.writers_floor) if row is not None else (b"[]", 0)
        history = (entry.first, entry.since, entry.left, entry.changed)
        found.append(WholeRow(*entry.key, *history, entry.inside, spelled, count, writers, floor))
    return found
