"""The writing side of the feed: deltas merged into rows, and the moves of their entries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from lakesync.lww import RowState
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import ARRIVAL_STEP, ASTRAY, DELETED, Move, MoveKind, StoredRow
from lakesync.staging.store import Commit
from lakesync.types import Op, RowDelta, RowKey, Stamp

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
    """One row while the deltas of a push are merged into it."""

    __slots__ = ("arrival", "blind", "changed", "contested", "deleted", "inserted", "last_op", "row", "stale", "voided")

    def __init__(self, row: StoredRow, arrival: int) -> None:
        self.row = row
        self.arrival = arrival
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

    def merge(self, delta: RowDelta) -> None:
        """Merge one delta and note which columns moved or were contested."""
        row, state = self.row, self.row.state
        before = len(state.live)
        tombstone = state.tombstone
        outcome = state.merge(delta)
        self.changed |= outcome.changed
        self._follow(delta.op)
        if state.tombstone != tombstone and before:
            self.voided = True
        for column in outcome.won:
            row.touched[column] = self.arrival
        for column in outcome.lost:
            owner = state.owner(column)
            if owner is None:
                self.stale = True
            elif owner.client_id != delta.client_id:
                row.touched[column] = self.arrival
                self.contested = True
        if state.visible and (delta.op == "DELETE" or _is_dead(delta, tombstone)):
            self.stale = True

    def _follow(self, op: Op) -> None:
        """What the sender's own copy came from, in this push."""
        self.last_op = op
        if op == "DELETE":
            self.deleted, self.inserted, self.blind = True, False, False
        elif op == "INSERT":
            self.inserted = True
        elif not self.inserted:
            self.blind = True


def _is_dead(delta: RowDelta, tombstone: Stamp | None) -> bool:
    return tombstone is not None and delta.stamp <= tombstone


def arrivals_of(deltas: Sequence[RowDelta], last: int) -> dict[RowKey, int]:
    """Each row's arrival in a push whose last arrival is `last`: one a distinct row, in order of first appearance."""
    keys = dict.fromkeys(delta.key for delta in deltas)
    first = last - ARRIVAL_STEP * (len(keys) - 1)
    return {key: first + ARRIVAL_STEP * place for place, key in enumerate(keys)}


def own_bucket(client_id: str) -> str:
    """The bucket key of what concerns one client alone; no rule's key starts with `@`."""
    return f"@{client_id}"


def apply(commit: Commit, deltas: Sequence[RowDelta], sender: Sender, arrival: int, index: BucketIndex) -> Applied:
    """Merge a push's deltas into rows and write what the feed must tell of it.

    Args:
        arrival: the push's last arrival.
    """
    arrivals = arrivals_of(deltas, arrival)
    stored = commit.rows(arrivals)
    touches = {
        key: _Touch(stored.get(key) or StoredRow(*key, arrival=0, state=RowState()), place)
        for key, place in arrivals.items()
    }
    for delta in deltas:
        touches[delta.key].merge(delta)
    moves: list[Move] = []
    clean = True
    for touch in touches.values():
        had = _among(touch.row.keys, sender)
        moves += _entry_moves(touch, index)
        has = _among(touch.row.keys, sender)
        touch.stale |= has and not had and (touch.blind or not touch.inserted)
        if touch.contested or touch.stale if has else touch.last_op != "DELETE":
            clean = False
            moves.append(move(touch.row, own_bucket(sender.client_id), touch.arrival, "own"))
        _note_writer(touch, sender.client_id)
        touch.row.arrival = touch.arrival
    commit.put_rows([touch.row for touch in touches.values()])
    commit.put_moves(moves)
    return Applied(clean)


def keys_of(row: StoredRow, index: BucketIndex) -> tuple[str, ...]:
    """The bucket keys that a row belongs into, sorted; none where it is not visible."""
    if not row.state.visible:
        return ()
    return tuple(sorted(index.row_keys(row.table, row.state.values())))


def move(row: StoredRow, bucket: str, arrival: int, kind: MoveKind) -> Move:
    """A move of the row's entry under one bucket key."""
    return Move(bucket, row.table, row.row_id, arrival, kind)


def _entry_moves(touch: _Touch, index: BucketIndex) -> list[Move]:
    """Leaves and joins by the row's new keys.

    A row that stayed visible although a tombstone took columns from it leaves and joins again: whoever has it must
    drop those columns.
    """
    if not touch.changed:
        return []
    row, arrival = touch.row, touch.arrival
    old, new = row.keys, keys_of(row, index)
    row.keys = new
    row.touched = {column: at for column, at in row.touched.items() if row.state.owner(column) is not None}
    moves = [move(row, bucket, arrival, "leave") for bucket in old if touch.voided or bucket not in new]
    for bucket in new:
        again = touch.voided or bucket not in old
        moves.append(move(row, bucket, arrival, "join" if again else "stay"))
    return moves


def _among(keys: Collection[str], sender: Sender) -> bool:
    return any(bucket in sender.keys for bucket in keys)


def _note_writer(touch: _Touch, client_id: str) -> None:
    row = touch.row
    inserted = DELETED if touch.deleted else row.writers.get(client_id, (0, 0))[0]
    if touch.stale and touch.last_op != "DELETE":
        inserted = ASTRAY
    elif touch.inserted and inserted != ASTRAY:
        inserted = touch.arrival
    row.writers.pop(client_id, None)
    row.writers[client_id] = (inserted, touch.arrival)
    while len(row.writers) > WRITERS_KEPT:
        oldest = min(row.writers, key=lambda writer: row.writers[writer][1])
        row.writers_floor = max(row.writers_floor, row.writers.pop(oldest)[1])
