"""A layer: rows and changes of feed entries in memory that `state.db` does not contain yet.

`LayeredFile` keeps several layers over the file: of the current job, its group, committed groups, and the layer that
is being written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from lakesync.model.types import RowKey
from lakesync.staging.moves import EntryChange, MoveSums, add_moves, add_sums, changes_of, newest_of
from lakesync.staging.records import Move, StoredRow

RowChange = tuple[RowKey, str, EntryChange]
"""A row's key, a bucket key, and the change of the entry."""


class Layer:
    """The writes of one job, one group, or the commits of some seconds.

    Most changes of entries follow from rows: a row's entries under its bucket keys change at the row's arrival. The
    others are explicit moves.
    """

    __slots__ = ("_moves", "_unlisted", "count", "newest", "rows")

    def __init__(self) -> None:
        self.rows: dict[str, dict[RowKey, StoredRow]] = defaultdict(dict)
        self.count = 0
        """Number of rows."""
        self.newest: dict[tuple[str, str], int] = {}
        """The newest arrival of an entry's change, by gateway and bucket key."""
        self._unlisted: dict[str, dict[RowKey, StoredRow]] = {}
        """By gateway: rows whose own changes of entries may be missing in the file. A gateway that is absent here has
        all of its rows in this state."""
        self._moves: dict[str, MoveSums] = defaultdict(dict)
        """By gateway: combined explicit moves that the file does not contain."""

    def __bool__(self) -> bool:
        return bool(self.count) or self.has_entries

    @property
    def has_entries(self) -> bool:
        """Whether there are changes of entries that the file does not contain."""
        unlisted = any(self._unlisted.get(gateway, rows) for gateway, rows in self.rows.items())
        return unlisted or any(any(sums.values()) for sums in self._moves.values())

    def put(self, gateway: str, rows: Collection[StoredRow], moves: Collection[Move]) -> Collection[str]:
        """Add rows, each key once, and then moves; return the bucket keys of all of them."""
        if rows:
            added = {row.key: row for row in rows}
            held = self.rows.setdefault(gateway, added)
            before = 0
            if held is not added:
                before = len(held)
                held.update(added)
            if gateway in self._unlisted:
                self._unlisted[gateway].update(added)
            self.count += len(held) - before
        if moves:
            add_moves(self._moves[gateway], moves)
        newest = newest_of(rows, moves)
        self._advance({(gateway, bucket): at for bucket, at in newest.items()})
        return newest

    def with_later(self, later: Layer) -> Layer:
        """Return the layer with a later one added. Use only the returned object afterwards."""
        if not self:
            return later
        for gateway, rows in later.rows.items():
            if gateway in self._unlisted or gateway in later._unlisted:
                self._unlisted_rows(gateway).update(later._unlisted_rows(gateway))
            held = self.rows[gateway]
            before = len(held)
            held.update(rows)
            self.count += len(held) - before
        for gateway, moves in later._moves.items():
            add_sums(self._moves[gateway], moves)
        self._advance(later.newest)
        return self

    def _advance(self, newest: dict[tuple[str, str], int]) -> None:
        """Update `newest` with later arrivals."""
        held = self.newest
        for place, at in newest.items():
            if at > held.get(place, 0):
                held[place] = at

    def _unlisted_rows(self, gateway: str) -> dict[RowKey, StoredRow]:
        """Return a gateway's part of `_unlisted`, which is a dictionary of its own from now on."""
        if gateway not in self._unlisted:
            self._unlisted[gateway] = self.rows[gateway].copy()
        return self._unlisted[gateway]

    def take_entries(self, gateway: str, rows: Iterable[StoredRow]) -> Iterator[RowChange]:
        """Remove and yield the changes of rows' entries under their own bucket keys."""
        unlisted, sums = self._unlisted_rows(gateway), self._moves[gateway]
        for row in rows:
            key = row.key
            if unlisted.pop(key, None) is not None:
                for bucket, change in changes_of(row, sums):
                    yield key, bucket, change

    def take_all_entries(self) -> dict[str, list[RowChange]]:
        """Remove and return all changes of entries that the file does not contain, by gateway."""
        found: dict[str, list[RowChange]] = {}
        for gateway in {**self.rows, **self._moves}:
            changes = list(self.take_entries(gateway, list(self._unlisted_rows(gateway).values())))
            for bucket, sums in self._moves.pop(gateway, {}).items():
                changes += [(key, bucket, change) for key, change in sums.items()]
            if changes:
                found[gateway] = changes
        return found
