"""A range of the feed, encoded as it is sent to one client: the fast path of a pull.

`View.stretch` returns it; `feed.pull` sends it, or reads entries one by one if there is none.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

SEPARATOR = b"\0"
"""Separates encoded rows; no JSON text contains it."""


class Reader(NamedTuple):
    """A client that was sent nothing in a part of the feed.

    Of the rows there it has only older versions, and what it wrote itself.
    """

    base: int
    """It had all rows that were inside its buckets at this arrival; -1 if it had nothing."""
    writer: bytes
    """`encode_client` of its id."""
    known_from: int
    """Writers that are missing in `StoredRow.writers`, which wrote up to here, do not matter to it."""
    own: str
    """The bucket key of changes that concern it alone."""


class Stretch(NamedTuple):
    """Entries ordered by `changed`: rows that the reader lacks entirely, and rows of which it needs nothing.

    It needs nothing of rows that are outside its buckets and that it does not have, or that have a later entry.
    """

    joined: bytes
    """The rows that it lacks, each as `wire.encoded.encode_row` returns it, with SEPARATOR in between."""
    counts: str
    """One character per entry: its code is the entry's number of deltas in `joined`, 0 if nothing is sent."""
    last: int
    """`changed` of the last entry."""

    @property
    def deltas(self) -> int:
        """The number of deltas."""
        return sum(map(ord, self.counts))

    @property
    def text(self) -> bytes:
        """The rows, as a part of a JSON array."""
        return self.joined.replace(SEPARATOR, b",")

    def first(self, wanted: int, most_bytes: int) -> tuple[bytes, int, int]:
        """Return the shortest prefix of the entries with `wanted` deltas or `most_bytes` bytes, or all.

        Returns:
            The prefix's rows as a part of a JSON array, its number of deltas, and its number of entries.
        """
        sums = list(accumulate(map(ord, self.counts)))
        entries = min(bisect_left(sums, wanted) + 1, len(sums))
        texts = self.joined.split(SEPARATOR)
        if len(self.joined) > most_bytes:
            sizes = iter(accumulate(map(len, texts)))
            reached = list(accumulate((next(sizes) if ord(count) else 0 for count in self.counts), max))
            entries = min(entries, bisect_left(reached, most_bytes) + 1)
        rows = entries - self.counts.count("\0", 0, entries)
        return b",".join(texts[:rows]), sums[entries - 1], entries
