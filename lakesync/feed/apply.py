"""The writing side of the feed: deltas merged into rows, and the moves of their entries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from lakesync.lww import RowState
from lakesync.rules.keys import EVERYTHING, BucketIndex
from lakesync.staging.records import ARRIVAL_STEP, DELETED, Move, MoveKind, StoredRow
from lakesync.staging.store import Commit
from lakesync.types import Op, RowDelta, RowKey

_EVERYTHING = (EVERYTHING,)
WRITERS_KEPT = 8
"""Writers remembered a row; one that fell out is treated as unsure."""


class Sender(NamedTuple):
    """Who pushes."""

    client_id: str
    keys: Collection[str]
    """The bucket keys that it may see."""


class Applied(NamedTuple):
    """What a push did, as far as its sender is concerned."""

    clean: bool
    """Nothing of the sender's own rows has to be sent back to it."""


class _Touch:
    """What the deltas of a push do to one row."""

    __slots__ = ("blind", "changed", "contested", "deleted", "inserted", "last_op", "stale", "voided")

    def __init__(self) -> None:
        self.changed = False
        self.voided = False
        """A tombstone took columns from a row that was there."""
        self.contested = False
        """The sender lost columns to others."""
        self.stale = False
        """The sender's own copy cannot be what the row is now."""
        self.deleted = self.inserted = False
        self.blind = False
        """The sender changed the row before it inserted it, if it did: its copy may lack that."""
        self.last_op = ""

    def take(self, op: Op) -> None:
        """The one delta of the push was newer than all that the row had, and no DELETE."""
        self.changed, self.last_op = True, op
        self.inserted = op == "INSERT"
        self.blind = not self.inserted

    def merge(self, row: StoredRow, delta: RowDelta, arrival: int) -> None:
        """Merge one delta and note which columns moved or were contested."""
        state, op = row.state, delta.op
        there = bool(state.live)
        tombstone = state.tombstone
        outcome = state.merge(delta)
        self.changed |= outcome.changed
        self._follow(op)
        if outcome.won:
            row.touched.update(dict.fromkeys(outcome.won, arrival))
        if outcome.lost:
            self._contest(row, delta, outcome.lost, arrival)
        if op == "DELETE":
            self.voided |= there and state.tombstone != tombstone
            self.stale |= state.visible
        elif tombstone is not None and delta.stamp <= tombstone:
            self.stale |= state.visible

    def _contest(self, row: StoredRow, delta: RowDelta, lost: Iterable[str], arrival: int) -> None:
        for column in lost:
            owner = row.state.owner(column)
            if owner is None:
                self.stale = True
            elif owner.client_id != delta.client_id:
                row.touched[column] = arrival
                self.contested = True

    def _follow(self, op: Op) -> None:
        """What the sender's own copy came from, in this push."""
        self.last_op = op
        if op == "DELETE":
            self.deleted, self.inserted, self.blind = True, False, False
        elif op == "INSERT":
            self.inserted = True
        elif not self.inserted:
            self.blind = True


def by_row(deltas: Sequence[RowDelta]) -> dict[RowKey, list[RowDelta]]:
    """A push's deltas row by row, in order of first appearance."""
    rows: dict[RowKey, list[RowDelta]] = {}
    for delta in deltas:
        key = (delta.table, delta.row_id)
        if key in rows:
            rows[key].append(delta)
        else:
            rows[key] = [delta]
    return rows


def arrivals_of(deltas: Sequence[RowDelta], last: int) -> dict[RowKey, int]:
    """Each row's arrival in a push whose last arrival is `last`: one a distinct row, in order of first appearance."""
    named = by_row(deltas)
    first = last - ARRIVAL_STEP * (len(named) - 1)
    return {key: first + ARRIVAL_STEP * place for place, key in enumerate(named)}


def own_bucket(client_id: str) -> str:
    """The bucket key of what concerns one client alone; no rule's key starts with `@`."""
    return f"@{client_id}"


def apply(commit: Commit, deltas: Sequence[RowDelta], sender: Sender, arrival: int, index: BucketIndex) -> Applied:
    """Merge a push's deltas into rows and write what the feed must tell of it.

    Args:
        arrival: the push's last arrival.
    """
    named = by_row(deltas)
    stored = commit.rows(named)
    allowed = frozenset(sender.keys)
    own, client_id = own_bucket(sender.client_id), sender.client_id
    rows: list[StoredRow] = []
    moves: list[Move] = []
    clean = True
    at = arrival - ARRIVAL_STEP * len(named)
    for key, changes in named.items():
        at += ARRIVAL_STEP
        row = stored.get(key) or StoredRow(*key, arrival=0, state=RowState())
        touch = _Touch()
        won = row.state.take(changes[0]) if len(changes) == 1 else None
        if won is not None:
            touch.take(changes[0].op)
            row.touched.update(dict.fromkeys(won, at))
        else:
            for delta in changes:
                touch.merge(row, delta, at)
        had = not allowed.isdisjoint(row.keys)
        if touch.changed:
            moves += _entry_moves(touch, row, at, index)
        has = not allowed.isdisjoint(row.keys)
        touch.stale |= not has or (not had and (touch.blind or not touch.inserted))
        if has and not had:  # what others wrote comes with it
            touch.contested |= any(part.client_id != client_id for part in row.state.live)
        if touch.contested or touch.stale if has else touch.last_op != "DELETE":
            clean = False
            moves.append(move(row, own, at, "own"))
        _note_writer(touch, row, at, client_id)
        row.arrival = at
        rows.append(row)
    commit.put_rows(rows)
    commit.put_moves(moves)
    return Applied(clean)


def keys_of(row: StoredRow, index: BucketIndex) -> tuple[str, ...]:
    """The bucket keys that a row belongs into, sorted; none where it is not visible."""
    if not row.state.visible:
        return ()
    if index.everything:
        return _EVERYTHING
    return tuple(sorted(index.row_keys(row.table, row.state.values())))


def move(row: StoredRow, bucket: str, arrival: int, kind: MoveKind) -> Move:
    """A move of the row's entry under one bucket key."""
    return Move(bucket, row.table, row.row_id, arrival, kind)


def _entry_moves(touch: _Touch, row: StoredRow, arrival: int, index: BucketIndex) -> list[Move]:
    """Leaves and joins by the row's new keys.

    A row that stayed visible although a tombstone took columns from it leaves and joins again: whoever has it must
    drop those columns.
    """
    old, new = row.keys, keys_of(row, index)
    if touch.deleted:
        row.touched = {column: at for column, at in row.touched.items() if row.state.owner(column) is not None}
    if old == new and not touch.voided:
        return [move(row, bucket, arrival, "stay") for bucket in new]
    row.keys = new
    moves = [move(row, bucket, arrival, "leave") for bucket in old if touch.voided or bucket not in new]
    for bucket in new:
        again = touch.voided or bucket not in old
        moves.append(move(row, bucket, arrival, "join" if again else "stay"))
    return moves


def _note_writer(touch: _Touch, row: StoredRow, arrival: int, client_id: str) -> None:
    writers = row.writers
    known = writers.pop(client_id, None)
    inserted = DELETED if touch.deleted else known[0] if known is not None else 0
    if touch.stale and touch.last_op != "DELETE":
        inserted = -arrival  # astray
    elif touch.inserted and inserted >= DELETED:
        inserted = arrival
    writers[client_id] = (inserted, arrival)
    while len(writers) > WRITERS_KEPT:
        oldest = min(writers, key=lambda writer: writers[writer][1])
        row.writers_floor = max(row.writers_floor, writers.pop(oldest)[1])
