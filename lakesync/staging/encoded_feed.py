"""Parts of the feed, encoded as they are sent to clients: ranges of rows, and single rows.

The *feed* has the rows of a gateway (one app's stream of changes) by bucket key, in order of their latest change. A
*feed entry* is a row's history under one bucket key (a bucket of the sync rules): when the row joined the bucket, left
it, and last changed in it. These times are *arrivals*, the gateway's timestamps of commits. A *writer* of a row is a
client that pushed a change of it. A client that lacks a row entirely is sent all of it, as one or more *deltas* (INSERT
and UPDATE). Stores return such rows encoded, so that `feed.pull` need not decode and encode them: this makes most pulls
fast.

`FeedView.read_range` returns a range of the feed, or None if some of its rows have to be decided one by one.
`FeedView.full_rows` returns entries with their encoded rows. SQLite stores rows in this form, Postgres encodes them
when they are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

import msgspec

from lakesync.model.merge import LiveDelta
from lakesync.model.types import RowKey
from lakesync.staging.records import Entry, StoredRow
from lakesync.wire.encoded import encode_row

SEPARATOR = b"\0"
"""Separates encoded rows; no JSON text contains it."""


class Reader(NamedTuple):
    """A client that was sent nothing of the part of the feed that is read.

    Of the rows there it has only versions from before `base`, and its own writes.
    """

    base: int
    """The arrival at which the client had exactly what it could see; `NO_BASE` if it had nothing."""
    writer: bytes
    """The client's id, as `encode_client_id` returns it."""
    known_from: int
    """An arrival. If a row's `writers_floor` is not above it, the row's `writers` show whether the client wrote to the
    row since `base`; otherwise that is unknown (`feed.row_presence.writers_known_from`)."""
    own: str
    """The bucket key of changes that concern the client alone."""


class FeedRange(NamedTuple):
    """Entries ordered by `changed`: of rows that the reader lacks entirely, and of rows of which it needs nothing.

    The reader needs nothing of a row that it does not have and that is outside its buckets, or that has a later entry.
    """

    joined: bytes
    """The rows that the reader lacks, each as `wire.encoded.encode_row` returns it, with SEPARATOR in between."""
    counts: str
    """One character for each entry. Its code is the number of the entry's deltas in `joined`; 0 if nothing of the row
    is sent at this entry."""
    last: int
    """`changed` of the last entry."""

    @property
    def deltas(self) -> int:
        """The number of deltas in the range."""
        return sum(map(ord, self.counts))

    @property
    def text(self) -> bytes:
        """The rows, as a part of a JSON array."""
        return self.joined.replace(SEPARATOR, b",")

    def prefix(self, wanted: int, most_bytes: int) -> tuple[bytes, int, int]:
        """Return the shortest prefix of the entries with which a page is full; all entries if it is not full with them.

        For example, with `counts` of 1, 0, 3 and 2 deltas, and `wanted` 4, the prefix has the first three entries.

        Args:
            wanted: the number of deltas with which the page is full.
            most_bytes: the number of encoded bytes with which it is full.

        Returns:
            The prefix's rows as a part of a JSON array, its number of deltas, and its number of entries.
        """
        deltas_up_to = list(accumulate(map(ord, self.counts)))  # by entry, this one included
        entries = min(bisect_left(deltas_up_to, wanted) + 1, len(deltas_up_to))
        texts = self.joined.split(SEPARATOR)
        if len(self.joined) > most_bytes:
            sizes = map(len, texts)  # an entry of which nothing is sent has no text
            bytes_up_to = list(accumulate(next(sizes) if ord(count) else 0 for count in self.counts))
            entries = min(entries, bisect_left(bytes_up_to, most_bytes) + 1)
        rows = entries - self.counts.count("\0", 0, entries)
        return b",".join(texts[:rows]), deltas_up_to[entries - 1], entries


_encode = msgspec.json.Encoder().encode


class FullRow(NamedTuple):
    """A feed entry, and its row encoded for a client that lacks all of it.

    `first`, `since`, `left_before` and `changed` are arrivals: the row first joined the bucket, last joined it, last
    left it before that, and last changed in it or left it; 0 if it never did. `inside`: whether it is in the bucket
    now.
    """

    table: str
    row_id: str
    first: int
    since: int
    left_before: int
    changed: int
    inside: bool
    encoded: bytes | None
    """The output of `wire.encoded.encode_row`; None if the row is not visible, or the store has not encoded it yet."""
    deltas: int
    """Number of deltas in `encoded`."""
    writers: bytes
    """A JSON array of the client ids in `StoredRow.writers`: the row's latest writers."""
    writers_floor: int
    """`StoredRow.writers_floor`: other clients may have written to the row up to this arrival."""

    @property
    def key(self) -> RowKey:
        """Table and row id."""
        return (self.table, self.row_id)

    def with_row(self, row: StoredRow) -> FullRow:
        """Return the entry with a newer version of its row."""
        encoded, deltas, writers, floor = encode_full_row(row.fold())
        return self._replace(encoded=encoded, deltas=deltas, writers=writers, writers_floor=floor)


def encode_client_id(client_id: str) -> bytes:
    """Return a client id as it appears in `FullRow.writers`, to search for it there without decoding."""
    return _encode(client_id)


def encode_writers(row: StoredRow) -> bytes:
    """Return `FullRow.writers` of a row."""
    return _encode(list(row.writers))


def encode_full_row(row: StoredRow, live: list[LiveDelta] | None = None) -> tuple[bytes | None, int, bytes, int]:
    """Return the fields of a `FullRow` that come from its row: encoded, deltas, writers, writers_floor.

    Args:
        row: the stored row.
        live: `row.state.live`, if the caller has computed it already; None computes it.
    """
    encoded, deltas = encode_row(row.table, row.row_id, row.state, live) if row.state.visible else (None, 0)
    return encoded, deltas, encode_writers(row), row.writers_floor


def full_rows(entries: Iterable[Entry], rows: Mapping[RowKey, StoredRow]) -> list[FullRow]:
    """Return entries with their encoded rows, for a store that does not store rows encoded.

    Args:
        entries: the entries, in the order of the feed.
        rows: the rows of the entries, by key; a missing one counts as invisible.
    """
    result = []
    for entry in entries:
        row = rows.get(entry.key)
        history = (entry.first, entry.since, entry.left_before, entry.changed)
        encoded, deltas, writers, floor = encode_full_row(row) if row is not None else (None, 0, b"[]", 0)
        result.append(FullRow(*entry.key, *history, entry.inside, encoded, deltas, writers, floor))
    return result
