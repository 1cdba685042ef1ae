"""Rows of the feed in order, joined as they are sent whole to one reader."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

SEPARATOR = b"\0"
"""Between rows that are joined: no JSON text has it."""


class Reader(NamedTuple):
    """A client that was told nothing of a part of the feed: it holds of it what it had before, or wrote itself."""

    base: int
    """It had what was inside of the bucket at this arrival; -1: it had nothing."""
    writer: bytes
    """`whole.spell_client` of its id."""
    known_from: int
    """Who wrote up to here and fell out of a row's writers does not matter to it."""
    own: str
    """The bucket key of what concerns it alone."""


class Stretch(NamedTuple):
    """Entries in order of `changed`: rows that a reader lacks whole, and such as it need not be told of there.

    These are not inside of anything and not held by it, or have another, later entry.
    """

    joined: bytes
    """The rows, each as `wire.encoded.encode_row` has it, with SEPARATOR between them."""
    counts: str
    """A character an entry, whose code is how many deltas of `joined` it is; 0 where it has not to be told."""
    last: int
    """`changed` of the last entry."""

    @property
    def deltas(self) -> int:
        """How many deltas they are."""
        return sum(map(ord, self.counts))

    @property
    def text(self) -> bytes:
        """The rows as a part of a JSON array."""
        return self.joined.replace(SEPARATOR, b",")

    def first(self, wanted: int, most_bytes: int) -> tuple[bytes, int, int]:
        """As few entries from the begin as have `wanted` deltas or `most_bytes` bytes, where there are so many.

        Returns:
            Their rows as a part of a JSON array, deltas, entries.
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
