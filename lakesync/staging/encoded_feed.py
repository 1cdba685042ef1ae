"""Ranges of the feed, encoded as they are sent to clients.

The *feed* has the rows of a gateway (one app's stream of changes) by bucket key, in order of their latest change. A
*feed entry* is a row's history under one bucket key (a bucket of the sync rules): when the row joined the bucket, left
it, and last changed in it. These times are *arrivals*, the gateway's timestamps of commits. A *writer* of a row is a
client that pushed a change of it. A client that lacks a row entirely is sent all of it, as one or more *deltas* (INSERT
and UPDATE). SQLite stores rows encoded for such a client, so that `feed.pull` need not decode and encode them: this
makes a first sync fast.

`FeedView.read_range` returns a range of the feed, or None if some of its rows have to be decided one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

import msgspec

from lakesync.model.merge import LiveDelta
from lakesync.staging.records import StoredRow
from lakesync.wire.encoded import encode_row

SEPARATOR = b"\0"
"""Separates encoded rows; no JSON text contains it."""


class Reader(NamedTuple):
    """A client that was sent nothing of the part of the feed that is read.

    Of the rows there it has only versions from before `base`, and its own writes.
    """

    base: int
    """The arrival at which the client had exactly what it could see; `NO_BASE` (-1) if it had nothing."""
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

    encoded_rows: bytes
    """The rows that the reader lacks, each as `wire.encoded.encode_row` returns it, with SEPARATOR in between."""
    counts: str
    """One character for each entry. Its code is the number of the entry's deltas in `encoded_rows`; 0 if nothing of the
    row is sent at this entry."""
    last: int
    """`changed` of the last entry."""

    @property
    def deltas(self) -> int:
        """The number of deltas in the range."""
        return sum(map(ord, self.counts))

    @property
    def text(self) -> bytes:
        """The rows, as a part of a JSON array."""
        return self.encoded_rows.replace(SEPARATOR, b",")

    def prefix(self, wanted: int, most_bytes: int) -> FeedPrefix:
        """Return the shortest prefix of the entries with which a page is full; all entries if it is not full with them.

        For example, with `counts` of 1, 0, 3 and 2 deltas, and `wanted` 4, the prefix has the first three entries.

        Args:
            wanted: the number of deltas with which the page is full.
            most_bytes: the number of encoded bytes with which it is full.
        """
        deltas_up_to = list(accumulate(map(ord, self.counts)))  # by entry, this one included
        entries = min(bisect_left(deltas_up_to, wanted) + 1, len(deltas_up_to))
        texts = self.encoded_rows.split(SEPARATOR)
        if len(self.encoded_rows) > most_bytes:
            sizes = map(len, texts)  # an entry of which nothing is sent has no text
            bytes_up_to = list(accumulate(next(sizes) if ord(count) else 0 for count in self.counts))
            entries = min(entries, bisect_left(bytes_up_to, most_bytes) + 1)
        rows = entries - self.counts.count("\0", 0, entries)
        return FeedPrefix(b",".join(texts[:rows]), deltas_up_to[entries - 1], entries)


class FeedPrefix(NamedTuple):
    """The first entries of a `FeedRange`."""

    text: bytes
    """Their rows, as a part of a JSON array."""
    deltas: int
    """Number of deltas in `text`."""
    entries: int
    """Number of entries."""


class FullRow(NamedTuple):
    """What a store needs to send a row in a range."""

    encoded: bytes | None
    """The row as `wire.encoded.encode_row` returns it; None if it is not visible."""
    deltas: int
    """Number of deltas in `encoded`."""
    writers: bytes
    """A JSON array of the client ids in `StoredRow.writers`."""
    writers_floor: int
    """`StoredRow.writers_floor`: clients that wrote up to this arrival may be missing in `writers`."""


_encode = msgspec.json.Encoder().encode


def encode_client_id(client_id: str) -> bytes:
    """Return a client id as it appears in a row's encoded writers, to search for it there without decoding."""
    return _encode(client_id)


def encode_full_row(row: StoredRow, live: list[LiveDelta]) -> FullRow:
    """Encode a row as it is stored to be sent in a range.

    Args:
        row: the stored row.
        live: `row.state.live`, which the caller has computed already.
    """
    encoded, deltas = encode_row(row.table, row.row_id, row.state, live) if row.state.visible else (None, 0)
    return FullRow(encoded, deltas, _encode(list(row.writers)), row.writers_floor)
