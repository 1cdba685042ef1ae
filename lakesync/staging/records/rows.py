"""Merged rows as staging stores them, and their feed entries.

`feed.apply` creates changed rows and the changes of their entries (moves). Stores keep rows and entries. `feed.pull`
and `feed.row_presence` read them, to compute what a client lacks.

- The sync rules put a row into *buckets*, each named by a *bucket key*. A *feed entry* is the row's history under one
  bucket key: when it joined the bucket, left it, and last changed in it.
- An *arrival* is the gateway's own timestamp of a commit. An *hlc* is the timestamp that the client gave its write; it
  decides the merge. All times here are arrivals, except those named `hlc` and stamps.
- A *writer* of a row is a client that pushed a delta (change) of it. Its *copy* is the row in the client's own
  database. A copy is *astray* if it may differ from the merged row, and later changes do not correct it.
"""

from __future__ import annotations

from sys import intern
from typing import Literal

import msgspec
from msgspec import Raw

from lakesync.model.merge import LiveDelta, Origin, RowState, StoredState
from lakesync.model.types import RowDelta, RowKey, Stamp

WRITERS_KEPT = 8
"""The most writers that a row stores: its latest. For other writers, `row_presence` assumes that they may have the row.
"""
MAX_UNMERGED = 4
"""The most unmerged deltas of a row."""
MAX_UNMERGED_WIDTH = 16
"""The most columns of an unmerged delta. A wider one is merged immediately."""
MAX_UNMERGED_COLUMNS = MAX_UNMERGED * MAX_UNMERGED_WIDTH
"""The most columns in all unmerged deltas of a row."""
DELETED = -1
"""`Writer.own_copy` of a client that deleted the row itself. No arrival is 1, so no negative arrival equals it."""

MoveKind = Literal["join", "stay", "leave", "own"]
"""The kinds of `Move`."""


class Writer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a row stores about a client that wrote to it."""

    own_copy: int
    """What the client's own copy of the row may be, as one of four values:

    - an arrival: the client inserted the row then, and has it by that INSERT;
    - 0: the client only updated the row;
    - `DELETED`: the client deleted its copy;
    - a negative arrival: since then the client's copy may differ from the row (the copy is astray).
    """
    latest: int
    """The arrival of the client's latest delta of the row."""

    @property
    def astray_since(self) -> int:
        """The arrival since which the client's copy may differ from the row; 0 if its copy is not astray."""
        return -self.own_copy if self.own_copy < DELETED else 0

    @property
    def has_only_updated(self) -> bool:
        """Whether the client neither inserted nor deleted the row, and its copy is not astray."""
        return self.own_copy == 0


class Unmerged(msgspec.Struct, frozen=True, gc=False):
    """An INSERT or UPDATE that is not merged into its row yet, and that no later one has overwritten completely.

    The unmerged deltas of a row are a linked list, newest first.
    """

    hlc: int
    client_id: str
    delta_id: str
    values: bytes
    """The values of its columns, as a JSON array. It is one object, and no part of the request: so all objects of a
    decoded push are freed together, and the next push uses their memory while it is in the processor's cache."""
    names: tuple[str, ...]
    """The names of its columns, as `model.merge.intern_names` returns them: equal names are one tuple object, so that
    two deltas are compared by identity."""
    arrival: int
    """The delta's arrival."""
    before: Unmerged | None
    """The unmerged delta before it; None for the oldest."""
    count: int
    """The length of the list from this one on."""
    inserted: Stamp | None
    """The stamp (hlc, client id) of the newest INSERT that the row had since its last merge, overwritten ones included;
    None if it had none."""


class StoredRow(msgspec.Struct, gc=False):
    """A merged row, and which clients wrote to it.

    A store may return the object that it keeps in memory. So callers change only a `copy()` of a row, and store that.
    `fold` changes the object itself, but only its form: the row's values stay the same.
    """

    key: RowKey
    """Table and row id. It is one object for all versions of a row, to save memory."""
    arrival: int
    """Arrival of the latest change. It is the row's position in the feed of each of its bucket keys, except for keys
    that the row joined later."""
    state: RowState
    """The merged columns; without the deltas in `unmerged`."""
    writers: dict[str, Writer] = {}
    """The latest writers, by client id, ordered by their latest deltas; at most `WRITERS_KEPT`."""
    writers_floor: int = 0
    """Clients that wrote up to this arrival may be missing in `writers`."""
    keys: tuple[str, ...] = ()
    """The keys of the buckets that contain the row, sorted."""
    no_update_before: int = 0
    """A client that had the row before this arrival cannot be sent an UPDATE, but must be sent DELETE and INSERT. It is
    the later of two arrivals: when the row lost columns, by a DELETE or an erasure, so that the client has to drop
    them; and the last delta of a client that is no longer in `writers`, unless that client had only updated the row."""
    unmerged: Unmerged | None = None
    """The newest delta that is not merged into `state` yet; None if all are. Each of them has a higher hlc than
    everything in the row before it, so it wins all of its columns. Merging later saves work: a push of such a delta
    need not read the row's state, and `fold` merges several at once, without the values that were overwritten since."""

    @staticmethod
    def of_insert(key: RowKey, delta: RowDelta, client_id: str, arrival: int, keys: tuple[str, ...] = ()) -> StoredRow:
        """Return the row that one INSERT creates, if there was no row before.

        Args:
            key: the row's key, with the table's name interned.
            delta: the INSERT.
            client_id: id of the client that wrote it, as one string object for all deltas of a push.
            arrival: the INSERT's arrival.
            keys: the row's bucket keys; empty if the caller sets them later.
        """
        state, writers = RowState.of_insert(delta, arrival), {client_id: Writer(arrival, arrival)}
        return StoredRow(key, arrival, state, writers, keys=keys)

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
        floor, keys = self.writers_floor, self.keys
        return StoredRow(self.key, self.arrival, state, writers, floor, keys, self.no_update_before)

    @property
    def newest_hlc(self) -> int:
        """The highest hlc in the row."""
        return self.state.newest if self.unmerged is None else self.unmerged.hlc

    def value(self, column: str) -> Raw | None:
        """Return a column's value, unmerged deltas included; None if the row does not have the column."""
        delta = self.unmerged
        while delta is not None:
            if column in delta.names:
                return _decode_values(delta.values)[delta.names.index(column)]
            delta = delta.before
        return self.state.value(column)

    def with_unmerged(self, delta: RowDelta, names: tuple[str, ...], client_id: str, arrival: int) -> StoredRow:
        """Return the row after a delta that does not change its bucket keys; the delta is merged later, by `fold`.

        Args:
            delta: an INSERT or UPDATE with 1 to `MAX_UNMERGED_WIDTH` columns, and an hlc above `newest_hlc`. The caller
                has checked both.
            names: the names of its columns, as `intern_names` returns them.
            client_id: id of the client that wrote it, as one string object for all deltas of a push.
            arrival: the delta's arrival.
        """
        before, inserts = self.unmerged, delta.op == "INSERT"
        inserted = (delta.hlc, client_id) if inserts else None if before is None else before.inserted
        while before is not None and (
            before.names is names or (len(before.names) < len(names) and set(names).issuperset(before.names))
        ):
            before = before.before  # it is overwritten completely
        count = 1 if before is None else before.count + 1
        if count > MAX_UNMERGED:
            self.fold()
            before, count, inserted = None, 1, (delta.hlc, client_id) if inserts else None
        values = b"[%b]" % b",".join([column.value for column in delta.columns])
        unmerged = Unmerged(delta.hlc, client_id, delta.delta_id, values, names, arrival, before, count, inserted)
        state, writers, floor, keys = self.state, self.writers.copy(), self.writers_floor, self.keys
        row = StoredRow(self.key, arrival, state, writers, floor, keys, self.no_update_before, unmerged)
        row.note_writer(client_id, arrival, inserted=inserts)
        return row

    def fold(self) -> StoredRow:
        """Merge the deltas in `unmerged` into `state`, in place, and return the row.

        The row's values stay the same, so this may be called at any time in the thread that owns the row.
        """
        if self.unmerged is None:
            return self
        state, unmerged = self.state.copy(), [self.unmerged]
        if self.unmerged.inserted is not None:
            state.inserted = self.unmerged.inserted
        while (before := unmerged[-1].before) is not None:
            unmerged.append(before)
        for delta in reversed(unmerged):
            origin = Origin(delta.hlc, delta.client_id, delta.delta_id, len(delta.names), delta.names)
            state.overwrite(origin, _decode_values(delta.values), delta.arrival)
        self.state, self.unmerged = state, None
        return self

    def note_writer(self, client_id: str, arrival: int, *, inserted: bool = False, deleted: bool = False) -> None:
        """Record a client that wrote to the row as its latest writer.

        Args:
            client_id: the client's id.
            arrival: the arrival of the client's deltas.
            inserted: whether the deltas contain an INSERT, and no DELETE after it.
            deleted: whether the deltas contain a DELETE.
        """
        writers = self.writers
        earlier = writers.pop(client_id, None)
        copy = DELETED if deleted else earlier.own_copy if earlier is not None else 0  # the new `Writer.own_copy`
        if inserted and copy >= DELETED:  # it was not astray, so the copy is now what the INSERT has created
            copy = arrival
        elif copy == DELETED and not deleted:
            copy = -arrival  # astray: after its own DELETE, the client may have created a row from this write alone
        writers[client_id] = Writer(copy, arrival)  # last, as writers are ordered by their latest deltas
        if len(writers) > WRITERS_KEPT:
            removed = writers.pop(next(iter(writers)))
            self.writers_floor = max(self.writers_floor, removed.latest)
            if removed.own_copy:  # it inserted or deleted its own copy, which an UPDATE may not correct
                self.no_update_before = max(self.no_update_before, removed.latest)

    def mark_astray(self, client_id: str, arrival: int) -> None:
        """Record that a writer's copy of the row is astray since an arrival.

        The caller has called `note_writer` with both, which keeps the order and the number of writers.
        """
        self.writers[client_id] = Writer(-arrival, arrival)


class _Encoded(msgspec.Struct, array_like=True, gc=False):
    """The stored form of a row, a JSON array of these fields, which are those of `StoredRow`."""

    table: str
    row_id: str
    arrival: int
    state: StoredState
    touched: dict[str, int] = {}
    """Column → the arrival at which its value last changed; see `RowState.touched`."""
    writers: dict[str, Writer] = {}
    writers_floor: int = 0
    keys: tuple[str, ...] = ()
    no_update_before: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Encoded).decode
_decode_values = msgspec.json.Decoder(list[Raw]).decode


def encode_row(row: StoredRow, live: list[LiveDelta] | None = None) -> bytes:
    """Encode a row for a store, as compact JSON. Column values keep the JSON text in which they were pushed.

    Args:
        row: the row, after `fold`: deltas in `unmerged` would be lost.
        live: `row.state.live`, if the caller has computed it already; None computes it.
    """
    state = StoredState(row.state.live if live is None else live, row.state.tombstone, row.state.inserted)
    touched, floor, limit = row.state.touched, row.writers_floor, row.no_update_before
    return _encode(_Encoded(row.table, row.row_id, row.arrival, state, touched, row.writers, floor, row.keys, limit))


def decode_row(data: bytes) -> StoredRow:
    """Decode the output of `encode_row`. Column values are views into `data`, and keep it in memory.

    Raises:
        msgspec.DecodeError: `data` is not the output of `encode_row`.
    """
    stored = _decode(data)
    key, state = (intern(stored.table), stored.row_id), stored.state.state(stored.touched)
    floor, limit = stored.writers_floor, stored.no_update_before
    return StoredRow(key, stored.arrival, state, stored.writers, floor, stored.keys, limit)


class Move(msgspec.Struct, frozen=True, gc=False):
    """A change of one row's feed entry under one bucket key.

    `join`: the row came into the bucket. `stay`: it is in the bucket and changed. `leave`: it left the bucket. `own`:
    the row concerns one client alone (bucket key `@client`): the client's delta lost a conflict, or the client may not
    see the row.
    """

    bucket: str
    table: str
    row_id: str
    arrival: int
    kind: MoveKind


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A row's history under one bucket key. Numbers are arrivals; 0 for an event that never happened."""

    bucket: str
    """The bucket key."""
    table: str
    row_id: str
    first: int
    """When the row first joined the bucket."""
    since: int
    """When the row last joined the bucket."""
    left_before: int
    """When the row last left the bucket before `since`."""
    changed: int
    """When the row last changed inside the bucket, or left it. The feed of a bucket key is in this order."""
    inside: bool
    """Whether the row is inside the bucket now."""

    @property
    def key(self) -> RowKey:
        """Table and row id."""
        return (self.table, self.row_id)

    @property
    def left(self) -> int:
        """When the row last left the bucket; 0 if it never left."""
        # `since` is 0 in an entry of `own` moves: no row joins or leaves the key `@client`
        return self.left_before if self.inside or not self.since else self.changed

    def may_be_inside_at(self, arrival: int) -> bool:
        """Return whether the row may have been inside the bucket at an arrival.

        A row may stay in a bucket several times. The entry has the times of the last stay, the end of the stay before,
        and the start of the first one. From that start to that end, the row may have left and joined any number of
        times, so the result is true there.
        """
        if self.since <= arrival:
            return self.inside or self.left > arrival
        return 0 < self.first <= arrival < self.left_before

    def may_be_inside_between(self, low: int, high: int) -> bool:
        """Return whether the row may have been inside the bucket at any arrival above `low` and up to `high`.

        Args:
            low: an arrival.
            high: a later arrival.
        """
        if self.since <= high:
            return self.inside or self.left > low
        return 0 < self.first <= high and self.left_before > low
