"""Rows of a store, what moves them in the feed, and their entries there."""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.model.merge import RowState
from lakesync.model.types import RowKey

DELETED = -1
"""In place of the arrival of a writer's INSERT: it deleted the row itself."""

MoveKind = Literal["join", "stay", "leave", "own"]


class StoredRow(msgspec.Struct, array_like=True, gc=False):
    """A row as the feed needs it: its state and who saw what of it when.

    A store may hand out the one that it holds: change a copy.
    """

    table: str
    row_id: str
    arrival: int
    """Latest arrival of a change."""
    state: RowState
    touched: dict[str, int] = {}
    """Column → arrival at which its value last changed or was last contested."""
    writers: dict[str, tuple[int, int]] = {}
    """Client → (arrival of the INSERT by which it has the row, arrival of its latest delta); the newest few.

    The first is 0 where it never inserted the row, DELETED where its own copy is gone, and an arrival with a minus
    where since then its own copy cannot be what the row is.
    """
    writers_floor: int = 0
    """Writers up to this arrival may be missing from `writers`."""
    keys: tuple[str, ...] = ()
    """Bucket keys that the row is inside of, sorted."""
    emptied: int = 0
    """Arrival at which it last lost columns, by a tombstone or an erasure: who held it before has to drop them."""

    @property
    def key(self) -> RowKey:
        """The row's place."""
        return (self.table, self.row_id)

    def copy(self) -> StoredRow:
        """A row that can be changed without changing this one."""
        return self.after(RowState(self.state.live, self.state.tombstone, self.state.inserted), self.arrival)

    def after(self, state: RowState, at: int) -> StoredRow:
        """A row that can be changed without changing this one, with another state from the arrival `at`."""
        touched, writers = self.touched.copy(), self.writers.copy()
        floor, keys, emptied = self.writers_floor, self.keys, self.emptied
        return StoredRow(self.table, self.row_id, at, state, touched, writers, floor, keys, emptied)


class Move(msgspec.Struct, frozen=True):
    """A change of one row's entry under one bucket key.

    `join`: the row is now inside, and was not. `stay`: it was inside and changed. `leave`: it was inside and is no
    longer. `own`: the row concerns one client alone (key `@client`): its own delta lost, or its row is not visible
    to it.
    """

    bucket: str
    table: str
    row_id: str
    arrival: int
    kind: MoveKind


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A row's history under one bucket key, as arrivals; 0 where it never happened."""

    bucket: str
    table: str
    row_id: str
    first: int
    """Earliest joining."""
    since: int
    """Latest joining."""
    left_before: int
    """Latest leaving before `since`."""
    changed: int
    """Latest change while inside, or latest leaving: the order of the feed."""
    inside: bool

    @property
    def key(self) -> RowKey:
        """The row's place."""
        return (self.table, self.row_id)

    @property
    def left(self) -> int:
        """Latest leaving."""
        return self.left_before if self.inside or not self.since else self.changed

    def may_be_inside_at(self, place: int) -> bool:
        """Whether the row may have been inside at an arrival; of stays before the last two only the first is known."""
        if self.since <= place:
            return self.inside or self.left > place
        return 0 < self.first <= place < self.left_before

    def may_be_inside_between(self, low: int, high: int) -> bool:
        """Whether the row may have been inside at any arrival above `low` and up to `high`."""
        if self.since <= high:
            return self.inside or self.left > low
        return 0 < self.first <= high and self.left_before > low
