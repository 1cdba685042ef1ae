"""The writing side of the feed: deltas merged into rows, and the moves of their entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from lakesync.lww import RowState
from lakesync.rules.keys import EVERYTHING, BucketIndex
from lakesync.staging.records import ARRIVAL_STEP, DELETED, Move, MoveKind, StoredRow
from lakesync.staging.store import Commit
from lakesync.types import Op, RowDelta, RowKey

Named = dict[RowKey, list[RowDelta]]
"""A push's deltas row by row, in order of first appearance."""

_EVERYTHING = (EVERYTHING,)
_NO_WRITER = (DELETED, 0)
WRITERS_KEPT = 8
"""Writers remembered a row; one that fell out is treated as unsure."""


class Sender(NamedTuple):
    """Who pushes."""

    client_id: str
    keys: Collection[str]
    """The bucket keys that it may see."""
    in_line: bool
    """Whether every row's bucket keys are those of the rules in force."""


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
        """The sender changed the row in this push before it inserted it, if it did: its copy may lack that."""
        self.last_op = ""

    @staticmethod
    def overwrite(op: Op) -> _Touch:
        """The one delta of the push was newer than all that the row had, and no DELETE."""
        touch = _Touch()
        touch.changed, touch.last_op = True, op
        touch.inserted = op == "INSERT"
        touch.blind = not touch.inserted
        return touch

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


_OVERWRITES = {op: _Touch.overwrite(op) for op in ("INSERT", "UPDATE")}


def by_row(deltas: Sequence[RowDelta]) -> Named:
    """A push's deltas row by row, in order of first appearance."""
    rows: Named = {}
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


def apply(commit: Commit, named: Named, sender: Sender, arrival: int, index: BucketIndex) -> Applied:
    """Merge a push's deltas into rows and write what the feed must tell of it.

    Args:
        named: its deltas, `by_row`.
        arrival: the push's last arrival.
    """
    stored = commit.rows(named)
    allowed = frozenset(sender.keys)
    own, client_id = own_bucket(sender.client_id), sender.client_id
    rows: list[StoredRow] = []
    moves: list[Move] = []
    stays: dict[str, dict[RowKey, int]] = defaultdict(dict)
    clean = True
    at = arrival - ARRIVAL_STEP * len(named)
    for key, changes in named.items():
        at += ARRIVAL_STEP
        before = stored.get(key) or StoredRow(*key, arrival=0, state=RowState())
        state = before.state.overwritten(changes[0]) if len(changes) == 1 else None
        if state is not None:
            row, touch = _overwritten(before, state, at), _OVERWRITES[changes[0].op]
            same_keys = sender.in_line and before.state.live and not index.reads(state.live[-1].columns)
        else:
            row, touch, same_keys = before.copy(), _Touch(), False
            row.arrival = at
            for delta in changes:
                touch.merge(row, delta, at)
        if touch.changed:
            if touch.deleted:
                row.touched = {column: at for column, at in row.touched.items() if row.state.owner(column) is not None}
            keys = row.keys if same_keys else keys_of(row, index)
            if keys == row.keys and not touch.voided:
                for bucket in keys:
                    stays[bucket][key] = at
            else:
                moves += _moves_to(keys, row, at, voided=touch.voided)
                row.keys = keys
        had, has = not allowed.isdisjoint(before.keys), not allowed.isdisjoint(row.keys)
        blind = touch.blind or (not touch.deleted and before.writers.get(client_id, _NO_WRITER)[0] == 0)
        stale = touch.stale or not has or (blind if touch.inserted else not had)
        returned = touch.last_op != "DELETE"
        if has:  # where it comes to be seen, what others wrote comes with it
            theirs = not had and any(part.client_id != client_id for part in row.state.live)
            returned = stale or touch.contested or theirs
        if returned:
            clean = False
            moves.append(move(row, own, at, "own"))
        _note_writer(touch, row, client_id, stale=stale)
        rows.append(row)
    commit.put_rows(rows)
    commit.put_moves(moves, stays)
    return Applied(clean)


def _overwritten(before: StoredRow, state: RowState, at: int) -> StoredRow:
    """A row whose newest live delta is all that is new to it."""
    touched = {**before.touched, **dict.fromkeys(state.live[-1].columns, at)}
    writers = before.writers.copy()
    return StoredRow(before.table, before.row_id, at, state, touched, writers, before.writers_floor, before.keys)


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


def _moves_to(keys: tuple[str, ...], row: StoredRow, arrival: int, *, voided: bool) -> list[Move]:
    """Leaves and joins by the row's new keys.

    A row that stayed visible although a tombstone took columns from it (it is `voided`) leaves and joins again: whoever
    has it must drop those columns.
    """
    moves = [move(row, bucket, arrival, "leave") for bucket in row.keys if voided or bucket not in keys]
    return moves + [move(row, each, arrival, "join" if voided or each not in row.keys else "stay") for each in keys]


def _note_writer(touch: _Touch, row: StoredRow, client_id: str, *, stale: bool) -> None:
    arrival, writers = row.arrival, row.writers
    known = writers.pop(client_id, None)
    inserted = DELETED if touch.deleted else known[0] if known is not None else 0
    if stale and touch.last_op != "DELETE":
        inserted = -arrival  # astray
    elif touch.inserted and inserted >= DELETED:
        inserted = arrival
    writers[client_id] = (inserted, arrival)  # behind the others: they stand in order of their latest deltas
    if len(writers) > WRITERS_KEPT:
        row.writers_floor = max(row.writers_floor, writers.pop(next(iter(writers)))[1])
