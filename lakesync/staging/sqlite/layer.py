"""A layer: rows and changes of feed entries in memory that `state.db` does not contain yet.

`LayeredFile` keeps a layer for the current *job* (a function that the store's owner thread runs in a transaction), for
the jobs before it in the same transaction, for committed transactions, and for the rows that are being written to the
file. It combines them, and writes them to the file.

A *feed entry* is a row's history under one bucket key (a bucket of the sync rules with the claims that may see it):
when it joined the bucket, left it, and last changed in it. A *move* is such a change of an entry. The times are
arrivals: the timestamps of commits by the gateway, which is one app's stream of changes. A read of the *feed*, the
entries in order of their last change, writes the entries to the file first, while the rows stay in memory. So a layer
tracks for its entries separately what the file contains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from lakesync.model.types import RowKey
from lakesync.staging.moves import EntryChange, MoveSums, add_moves, add_sums, newest_of, take_changes
from lakesync.staging.records import Move, StoredRow

RowChange = tuple[RowKey, str, EntryChange]
"""A row's key, a bucket key, and the change of the entry."""


class Layer:
    """The writes of one job, of the jobs of one transaction, or of the commits of some seconds.

    Most changes of entries follow from rows: a row's entries under its bucket keys change at the row's arrival. They
    are computed when they are written. The others (a row joins or leaves a bucket) are explicit moves.
    """

    __slots__ = ("_moves", "_pending_entries", "count", "newest", "rows")

    def __init__(self) -> None:
        self.rows: dict[str, dict[RowKey, StoredRow]] = defaultdict(dict)
        """By gateway: the newest version of each row."""
        self.count = 0
        """Number of rows."""
        self.newest: dict[tuple[str, str], int] = {}
        """The newest arrival of an entry's change, by gateway and bucket key."""
        self._pending_entries: dict[str, dict[RowKey, StoredRow]] = {}
        """By gateway: the rows of `rows` whose entries are not yet changed in the file. A gateway is absent while these
        are all of its rows, so that most layers need no second dictionary."""
        self._moves: dict[str, MoveSums] = defaultdict(dict)
        """By gateway: explicit moves that the file does not contain, those of one entry combined."""

    def __bool__(self) -> bool:
        return bool(self.count) or self.has_entries

    @property
    def has_entries(self) -> bool:
        """Whether there are changes of entries that the file does not contain."""
        pending = any(self._pending_entries.get(gateway, rows) for gateway, rows in self.rows.items())
        return pending or any(any(sums.values()) for sums in self._moves.values())

    def put(self, gateway: str, rows: Collection[StoredRow], moves: Collection[Move]) -> Collection[str]:
        """Add rows, and then moves. A row replaces an earlier version of it in the layer.

        Args:
            gateway: the gateway's id.
            rows: the rows; each row key occurs once.
            moves: the explicit moves, in order.

        Returns:
            The bucket keys of all of them.
        """
        if rows:
            added = {row.key: row for row in rows}
            stored = self.rows.setdefault(gateway, added)
            before = 0
            if stored is not added:
                before = len(stored)
                stored.update(added)
            if gateway in self._pending_entries:
                self._pending_entries[gateway].update(added)
            self.count += len(stored) - before
        if moves:
            add_moves(self._moves[gateway], moves)
        newest = newest_of(rows, moves)
        self._advance({(gateway, bucket): at for bucket, at in newest.items()})
        return newest

    def with_later(self, later: Layer) -> Layer:
        """Combine the layer with a later one. Use only the returned object afterwards: it reuses parts of both."""
        if not self:
            return later
        for gateway, rows in later.rows.items():
            if gateway in self._pending_entries or gateway in later._pending_entries:
                self._rows_with_pending_entries(gateway).update(later._rows_with_pending_entries(gateway))
            stored = self.rows[gateway]
            before = len(stored)
            stored.update(rows)
            self.count += len(stored) - before
        for gateway, moves in later._moves.items():
            add_sums(self._moves[gateway], moves)
        self._advance(later.newest)
        return self

    def take_entries(self, gateway: str, rows: Iterable[StoredRow]) -> Iterator[RowChange]:
        """Yield the changes of rows' entries under the rows' bucket keys; the caller writes them to the file.

        Changes that were yielded before are skipped.

        Args:
            gateway: the gateway's id.
            rows: rows of this layer.
        """
        pending, sums = self._rows_with_pending_entries(gateway), self._moves[gateway]
        for row in rows:
            key = row.key
            if pending.pop(key, None) is not None:
                for bucket, change in take_changes(row, sums):
                    yield key, bucket, change

    @property
    def move_count(self) -> int:
        """Number of changes of entries by explicit moves that the file does not contain."""
        return sum(len(changes) for sums in self._moves.values() for changes in sums.values())

    def take_moves(self, limit: int) -> dict[str, list[RowChange]]:
        """Return changes of entries by explicit moves, by gateway; the caller writes them to the file.

        Call `take_entries` for the layer's rows first: it takes the moves under the rows' own keys too.

        Args:
            limit: the most changes to return.

        Returns:
            Changes that were not returned before; empty at the end.
        """
        taken: dict[str, list[RowChange]] = {}
        remaining = limit
        for gateway, sums in self._moves.items():
            while sums and remaining:
                bucket, changes = next(reversed(sums.items()))  # from the end, because it is deleted there
                part = [(key, bucket, changes.pop(key)) for key in list(islice(changes, remaining))]
                if not changes:
                    del sums[bucket]
                if part:
                    taken.setdefault(gateway, []).extend(part)
                    remaining -= len(part)
        return taken

    def take_all_entries(self) -> dict[str, list[RowChange]]:
        """Return all changes of entries that the file does not contain, by gateway; the caller writes them to it.

        A second call returns only what was added since.
        """
        taken: dict[str, list[RowChange]] = {}
        for gateway in list(self.rows):
            changes = list(self.take_entries(gateway, list(self._rows_with_pending_entries(gateway).values())))
            if changes:
                taken[gateway] = changes
        for gateway, changes in self.take_moves(self.move_count).items():
            taken.setdefault(gateway, []).extend(changes)
        return taken

    def _advance(self, newest: dict[tuple[str, str], int]) -> None:
        """Raise the arrivals in `self.newest` to those given, by gateway and bucket key, if these are later."""
        stored = self.newest
        for bucket, arrival in newest.items():
            if arrival > stored.get(bucket, 0):
                stored[bucket] = arrival

    def _rows_with_pending_entries(self, gateway: str) -> dict[RowKey, StoredRow]:
        """Return a gateway's part of `_pending_entries`; create it, with all of the gateway's rows, if it is absent."""
        if gateway not in self._pending_entries:
            self._pending_entries[gateway] = self.rows[gateway].copy()
        return self._pending_entries[gateway]
