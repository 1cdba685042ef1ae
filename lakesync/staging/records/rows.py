"""Merged rows as staging stores them, and their feed entries.

`feed.apply` creates changed rows and moves, stores keep rows and entries, `feed.pull` and `feed.row_presence` read
them. The page `docs/feed.md` explains entries.
"""

from __future__ import annotations

from sys import intern
from typing import Literal

import msgspec

from lakesync.model.merge import LiveDelta, Origin, RowState, StoredState
from lakesync.model.types import ColumnValue, RowDelta, RowKey

WRITERS_KEPT = 8
"""Writers that are stored per row; for other writers, `row_presence` assumes that they may have the row."""
UPDATES_KEPT = 4
"""Most unmerged UPDATEs of a row; each keeps its request in memory until it is merged."""
NARROW = 16
"""Most columns of an UPDATE that is not merged at once."""
COLUMNS_WAITING = UPDATES_KEPT * NARROW
"""Most columns in the unmerged UPDATEs of a row."""
DELETED = -1
"""`Writer.inserted` of a client that deleted the row itself."""

MoveKind = Literal["join", "stay", "leave", "own"]


class Writer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a row stores about a client that wrote to it."""

    inserted: int
    """The arrival of the INSERT by which the client has the row; 0 if it never inserted it; DELETED if it deleted its
    own copy. A negative arrival means that since then its copy may differ from the row (it is astray)."""
    latest: int
    """The arrival of its latest delta."""


class Update(msgspec.Struct, frozen=True, gc=False):
    """An UPDATE that is not merged into its row yet, and that no later one with the same columns has overwritten."""

    hlc: int
    client_id: str
    delta_id: str
    columns: tuple[ColumnValue, ...]
    names: tuple[str, ...]
    """The names of its columns."""
    at: int
    """Its arrival."""
    before: Update | None
    """The unmerged UPDATE before it."""
    count: int
    """How many unmerged UPDATEs there are up to this one."""


class StoredRow(msgspec.Struct, gc=False):
    """A merged row, and which clients wrote to it.

    A store may return the object that it keeps in memory. So a row is never changed, but replaced by a changed copy.
    """

    key: RowKey
    """All versions of a row share it, and so do the dictionaries of the layers."""
    arrival: int
    """Arrival of the latest change, which is the row's feed position under each bucket key that it did not join later.
    """
    state: RowState
    writers: dict[str, Writer] = {}
    """By client id, ordered by their latest deltas; only the newest few."""
    writers_floor: int = 0
    """Writers up to this arrival may be missing from `writers`."""
    keys: tuple[str, ...] = ()
    """Bucket keys that the row is inside of, sorted."""
    emptied: int = 0
    """Arrival at which it last lost columns, by a tombstone or an erasure: clients that had it before must drop them.
    Also the latest delta of a removed writer that inserted or deleted its own copy: nothing else tells of that.
    """
    updates: Update | None = None
    """The newest UPDATE that `fold` has not merged yet. Each is newer than everything that the row had before it. So a
    push of such an UPDATE need not read the row's state, and several of them are merged at once."""

    @staticmethod
    def of_insert(key: RowKey, delta: RowDelta, client_id: str, at: int, keys: tuple[str, ...] = ()) -> StoredRow:
        """Return the row that a first INSERT makes.

        Args:
            key: the row's, with its table's name interned.
            delta: the INSERT.
            client_id: its writer, as one string object for all deltas of a push.
            at: its arrival.
            keys: the row's bucket keys, if they are known.
        """
        state, writers = RowState.of_insert(delta, at), {client_id: Writer(at, at)}
        return StoredRow(key, at, state, writers, keys=keys)

    @property
    def table(self) -> str:
        """The row's table."""
        return self.key[0]

    @property
    def row_id(self) -> str:
        """The row's id in its table."""
        return self.key[1]

    def copy(self) -> StoredRow:
        """Return a row that can be changed without changing this one."""
        self.fold()
        state, writers = self.state.copy(), self.writers.copy()
        floor, keys, emptied = self.writers_floor, self.keys, self.emptied
        return StoredRow(self.key, self.arrival, state, writers, floor, keys, emptied)

    @property
    def newest(self) -> int:
        """The highest hlc in the row."""
        return self.state.newest if self.updates is None else self.updates.hlc

    def updated(self, delta: RowDelta, names: tuple[str, ...], client_id: str, at: int) -> StoredRow:
        """Return the row after an UPDATE that does not change its bucket keys.

        Args:
            delta: the UPDATE, with `NARROW` columns at most; its hlc is above `newest`.
            names: its columns, `intern_names`.
            client_id: its writer, as one string object for all deltas of a push.
            at: its arrival.
        """
        last = self.updates
        before, count = last, 1 if last is None else last.count + 1
        if last is not None and last.names is names:
            before, count = last.before, last.count  # it is overwritten
        elif count > UPDATES_KEPT:
            self.fold()
            before, count = None, 1
        updates = Update(delta.hlc, client_id, delta.delta_id, delta.columns, names, at, before, count)
        state, writers, floor, keys = self.state, self.writers.copy(), self.writers_floor, self.keys
        row = StoredRow(self.key, at, state, writers, floor, keys, self.emptied, updates)
        row.note_writer(client_id, at)
        return row

    def fold(self) -> StoredRow:
        """Merge the UPDATEs in `updates`, and return the row. Its meaning stays, so this may happen at any time."""
        update = self.updates
        if update is None:
            return self
        state, newer = self.state.copy(), set[str]()
        while update is not None:
            if not newer.issuperset(update.names):  # else newer ones overwrote all of it
                origin = Origin(update.hlc, update.client_id, update.delta_id, len(update.names), update.names)
                state.overwrite(origin, update.columns, update.at, newer)
                newer.update(update.names)
            update = update.before
        self.state, self.updates = state, None
        return self

    def note_writer(self, client_id: str, at: int, *, inserted: bool = False, deleted: bool = False) -> None:
        """Record a client that wrote to the row.

        Args:
            client_id: the writer.
            at: the arrival of its deltas.
            inserted: whether they include an INSERT after any DELETE.
            deleted: whether they include a DELETE.
        """
        writers = self.writers
        known = writers.pop(client_id, None)
        place = DELETED if deleted else known.inserted if known is not None else 0
        if inserted and place >= DELETED:
            place = at
        elif place == DELETED and not deleted:
            place = -at  # astray: the client may have created a row from this write alone
        writers[client_id] = Writer(place, at)  # last, as writers are ordered by their latest deltas
        if len(writers) > WRITERS_KEPT:
            removed = writers.pop(next(iter(writers)))
            self.writers_floor = max(self.writers_floor, removed.latest)
            if removed.inserted:  # an UPDATE of what it had before would not make its copy right
                self.emptied = max(self.emptied, removed.latest)


class _Encoded(msgspec.Struct, array_like=True, gc=False):
    """The stored form of a row."""

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
        row: the row, without `updates`.
        live: `row.state.live`, if the caller has it.
    """
    state = StoredState(row.state.live if live is None else live, row.state.tombstone, row.state.inserted)
    floor, keys, emptied = row.writers_floor, row.keys, row.emptied
    return _encode(
        _Encoded(row.table, row.row_id, row.arrival, state, row.state.touched, row.writers, floor, keys, emptied)
    )


def decode_row(data: bytes) -> StoredRow:
    """Decode the output of `encode_row`; values are views that keep `data` alive.

    Raises:
        msgspec.DecodeError: `data` has another form.
    """
    found = _decode(data)
    state, floor, keys, emptied = found.state.state(found.touched), found.writers_floor, found.keys, found.emptied
    return StoredRow((intern(found.table), found.row_id), found.arrival, state, found.writers, floor, keys, emptied)


class Move(msgspec.Struct, frozen=True, gc=False):
    """A change of one row's feed entry under one bucket key.

    `join`: the row came into the bucket. `stay`: it is in the bucket and changed. `leave`: it left the bucket. `own`:
    the row concerns one client alone (key `@client`), because its delta lost a conflict, or it may not see the row.
    """

    bucket: str
    table: str
    row_id: str
    arrival: int
    kind: MoveKind


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A row's history under one bucket key, as arrivals; 0 for an event that never happened."""

    bucket: str
    table: str
    row_id: str
    first: int
    """The first time it came into the bucket."""
    since: int
    """The last time it came into the bucket."""
    left_before: int
    """The last time it left the bucket before `since`."""
    changed: int
    """Its last change inside the bucket, or the last time it left: the order of the feed."""
    inside: bool

    @property
    def key(self) -> RowKey:
        """Table and row id."""
        return (self.table, self.row_id)

    @property
    def left(self) -> int:
        """The last time it left the bucket."""
        return self.left_before if self.inside or not self.since else self.changed

    def may_be_inside_at(self, place: int) -> bool:
        """Return whether the row may have been inside at an arrival.

        Of stays in the bucket before the last two, only the start of the first is known.
        """
        if self.since <= place:
            return self.inside or self.left > place
        return 0 < self.first <= place < self.left_before

    def may_be_inside_between(self, low: int, high: int) -> bool:
        """Return whether the row may have been inside at any arrival above `low` and up to `high`."""
        if self.since <= high:
            return self.inside or self.left > low
        return 0 < self.first <= high and self.left_before > low
