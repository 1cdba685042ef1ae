"""Rows of a store, what moves them in the feed, and their entries there."""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.model.merge import LiveDelta, RowState, StoredState
from lakesync.model.types import RowDelta, RowKey

WRITERS_KEPT = 8
"""Writers remembered a row; one that fell out is treated as unsure."""
UPDATES_KEPT = 4
"""UPDATEs of a row that are merged in one go: they keep their requests in memory until then."""
DELETED = -1
"""In place of the arrival of a writer's INSERT: it deleted the row itself."""

MoveKind = Literal["join", "stay", "leave", "own"]


class Writer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a row remembers of a client that wrote it."""

    inserted: int
    """The arrival of the INSERT by which the client has the row.

    0 where it never inserted the row, DELETED where its own copy is gone, and an arrival with a minus where since then
    its own copy cannot be what the row is.
    """
    latest: int
    """The arrival of its latest delta."""


class Update(msgspec.Struct, frozen=True, gc=False):
    """An UPDATE that is not merged into its row yet."""

    delta: RowDelta
    at: int
    """Its arrival."""
    client_id: str
    before: Update | None
    """The one before it."""
    count: int
    """How many there are up to this one."""
    columns: int
    """How many columns these have, each counted for itself."""


class StoredRow(msgspec.Struct, gc=False):
    """A row as the feed needs it: its state and who saw what of it when.

    A store may return the one that it keeps in memory: a row is replaced by a changed copy, never changed.
    """

    table: str
    row_id: str
    arrival: int
    """Latest arrival of a change: the row's place in the feed of each of its bucket keys, unless it joined one later.
    """
    state: RowState
    writers: dict[str, Writer] = {}
    """By client id, in order of their latest deltas; the newest few."""
    writers_floor: int = 0
    """Writers up to this arrival may be missing from `writers`."""
    keys: tuple[str, ...] = ()
    """Bucket keys that the row is inside of, sorted."""
    emptied: int = 0
    """Arrival at which it last lost columns, by a tombstone or an erasure: who held it before has to drop them."""
    updates: Update | None = None
    """The newest of the UPDATEs that `fold` is yet to merge, each newer than all that the row had before it.

    A push of such an UPDATE need not look into the row, and several of them are merged in one go.
    """

    @property
    def key(self) -> RowKey:
        """The row's place."""
        return (self.table, self.row_id)

    def copy(self) -> StoredRow:
        """A row that can be changed without changing this one."""
        self.fold()
        state, writers = self.state.copy(), self.writers.copy()
        floor, keys, emptied = self.writers_floor, self.keys, self.emptied
        return StoredRow(self.table, self.row_id, self.arrival, state, writers, floor, keys, emptied)

    @property
    def newest(self) -> int:
        """No hlc in the row is greater."""
        return self.state.newest if self.updates is None else self.updates.delta.hlc

    @property
    def most_columns(self) -> int:
        """How many columns the row has at most."""
        return len(self.state.cells) + (self.updates.columns if self.updates is not None else 0)

    def updated(self, delta: RowDelta, client_id: str, at: int) -> StoredRow:
        """The row after an UPDATE that leaves it under its bucket keys.

        Args:
            delta: the UPDATE, with columns; its hlc is above `newest`.
            client_id: its writer, as one text for all deltas of a push.
            at: its arrival.
        """
        before, count, columns = self.updates, 1, len(delta.columns)
        if before is not None:
            if before.count >= UPDATES_KEPT:
                self.fold()
                before = None
            else:
                count, columns = before.count + 1, before.columns + columns
        updates = Update(delta, at, client_id, before, count, columns)
        state, writers, floor, keys = self.state, self.writers, self.writers_floor, self.keys
        return StoredRow(self.table, self.row_id, at, state, writers, floor, keys, self.emptied, updates)

    def fold(self) -> StoredRow:
        """Merge what `updates` holds. The row stays what it is, in another form; so it is returned."""
        if self.updates is None:
            return self
        state, self.writers = self.state.copy(), self.writers.copy()
        update: Update | None = self.updates
        waiting: list[Update] = []
        seen: set[str] = set()
        while update is not None:
            waiting.append(update)
            names = [column.column for column in update.delta.columns]
            if not seen.issuperset(names):  # else later ones overwrote all of it
                seen.update(names)
                state.merge(update.delta, update.at)
            update = update.before
        self.state, self.updates = state, None
        for each in reversed(waiting):
            self.note_writer(each.client_id, each.at)
        return self

    def note_writer(self, client_id: str, at: int, *, inserted: bool = False, deleted: bool = False) -> None:
        """Note who wrote the row: whether it deleted its own copy, and whether it inserted it after that.

        Args:
            client_id: the writer.
            at: the arrival of its deltas.
            inserted: whether an INSERT was among them, after any DELETE.
            deleted: whether a DELETE was among them.
        """
        writers = self.writers
        known = writers.pop(client_id, None)
        place = DELETED if deleted else known.inserted if known is not None else 0
        if inserted and place >= DELETED:
            place = at
        elif place == DELETED and not deleted:
            place = -at  # astray: it may have made a row of this alone
        writers[client_id] = Writer(place, at)  # behind the others: they are in order of their latest deltas
        if len(writers) > WRITERS_KEPT:
            self.writers_floor = max(self.writers_floor, writers.pop(next(iter(writers))).latest)


class _Encoded(msgspec.Struct, array_like=True, gc=False):
    """How a row is stored."""

    table: str
    row_id: str
    arrival: int
    state: StoredState
    touched: dict[str, int] = {}
    writers: dict[str, Writer] = {}
    writers_floor: int = 0
    keys: tuple[str, ...] = ()
    emptied: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Encoded).decode


def encode_row(row: StoredRow, live: list[LiveDelta] | None = None) -> bytes:
    """Encode a row as compact JSON; values keep their text.

    Args:
        row: the row, with no `updates`.
        live: `row.state.live`, where the caller has it.
    """
    state = StoredState(row.state.live if live is None else live, row.state.tombstone, row.state.inserted)
    floor, keys, emptied = row.writers_floor, row.keys, row.emptied
    return _encode(
        _Encoded(row.table, row.row_id, row.arrival, state, row.state.touched, row.writers, floor, keys, emptied)
    )


def decode_row(data: bytes) -> StoredRow:
    """Decode what `encode_row` returned; values are views that keep `data` alive.

    Raises:
        msgspec.DecodeError: `data` is something else.
    """
    found = _decode(data)
    state, floor, keys, emptied = found.state.state(found.touched), found.writers_floor, found.keys, found.emptied
    return StoredRow(found.table, found.row_id, found.arrival, state, found.writers, floor, keys, emptied)


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
