"""The writing side of the feed: deltas merged into rows, and the moves of their entries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from sys import intern
from typing import NamedTuple

from lakesync.model.merge import RowMerge, RowState
from lakesync.model.types import Op, RowDelta, RowKey, Stamp
from lakesync.rules.keys import EVERYTHING, BucketIndex
from lakesync.staging.hot_rows import HotRow, note_writer, overwrite
from lakesync.staging.moves import told_at_birth
from lakesync.staging.records import ARRIVAL_STEP, DELETED, Move, MoveKind, StoredRow
from lakesync.staging.store import Commit
from lakesync.wire.encoded import NO_STAMP
from lakesync.wire.json import encode_delta


class Named(NamedTuple):
    """A push's deltas row by row, in order of first appearance."""

    rows: Mapping[RowKey, Sequence[RowDelta]]
    columns: tuple[str, ...]
    """Of each delta, where all name the same in the same order; else none."""
    spelled: Sequence[bytes] = ()
    """Each row's delta as it is sent, where that was made already."""


_EVERYTHING = (EVERYTHING,)
_NO_WRITER = (DELETED, 0)


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

    def merge(self, row: StoredRow, state: RowMerge, delta: RowDelta, arrival: int) -> None:
        """Merge one delta into the row's state and note which columns moved or were contested."""
        op, there, tombstone = delta.op, state.has_columns, state.tombstone
        outcome = state.merge(delta)
        self.changed |= outcome.changed
        self._follow(op)
        if outcome.won:
            row.touched.update(dict.fromkeys(outcome.won, arrival))
        if outcome.lost:
            self._contest(row, state, delta, outcome.lost, arrival)
        if op == "DELETE":
            self.voided |= there and state.tombstone != tombstone
            self.stale |= state.visible
        elif tombstone is not None and delta.stamp <= tombstone:
            self.stale |= state.visible

    def _contest(self, row: StoredRow, state: RowMerge, delta: RowDelta, lost: Iterable[str], arrival: int) -> None:
        for column in lost:
            owner = state.owner(column)
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


def by_row(deltas: Sequence[RowDelta], *, spelled: bool = False) -> Named:
    """A push's deltas, one at least, row by row, in order of first appearance.

    Args:
        deltas: those of the push.
        spelled: where all of them may make new rows, make too what is kept of those.
    """
    rows: dict[RowKey, list[RowDelta]] = {(delta.table, delta.row_id): [delta] for delta in deltas}
    if len(rows) < len(deltas):
        rows = {}
        for delta in deltas:
            rows.setdefault(delta.key, []).append(delta)
    births = spelled and len(rows) == len(deltas) and {delta.op for delta in deltas} == {"INSERT"}
    return Named(rows, _columns_of_each(deltas), [encode_delta(delta) for delta in deltas] if births else ())


def _columns_of_each(deltas: Sequence[RowDelta]) -> tuple[str, ...]:
    columns = tuple([intern(cell.column) for cell in deltas[0].columns])
    width, names = len(columns), [cell.column for delta in deltas for cell in delta.columns]
    if {len(delta.columns) for delta in deltas} == {width} and names == [*columns] * len(deltas):
        return columns
    return ()


def arrivals_of(deltas: Sequence[RowDelta], last: int) -> dict[RowKey, int]:
    """Each row's arrival in a push whose last arrival is `last`: one a distinct row, in order of first appearance."""
    rows = by_row(deltas).rows
    first = last - ARRIVAL_STEP * (len(rows) - 1)
    return {key: first + ARRIVAL_STEP * place for place, key in enumerate(rows)}


def own_bucket(client_id: str) -> str:
    """The bucket key of what concerns one client alone; no rule's key starts with `@`."""
    return f"@{client_id}"


def too_wide(hot: Mapping[RowKey, HotRow], named: Named, most: int) -> dict[RowKey, int]:
    """Rows that a push gives new columns and that would have too many; how many each would have.

    Args:
        hot: the rows as they are.
        named: the push's deltas, `by_row`.
        most: how many columns a row may have.
    """
    wide = {}
    rows = named.rows
    if alike := named.columns:  # rows whose newest delta has the same columns get no new one
        rows = {key: rows[key] for key in rows if key not in hot or hot[key].unmerged_columns != alike}
    for key, changes in rows.items():
        before = hot.get(key)
        added = len(changes[0].columns) if len(changes) == 1 else sum([len(delta.columns) for delta in changes])
        if (before.most_columns if before is not None else 0) + added <= most:
            continue
        there = set(before.merged().state.values()) if before is not None else set()
        after = there.union([cell.column for delta in changes for cell in delta.columns])
        if len(after) > max(most, len(there)):
            wide[key] = len(after)
    return wide


def apply(
    commit: Commit,
    named: Named,
    sender: Sender,
    arrival: int,
    index: BucketIndex,
    hot: Mapping[RowKey, HotRow] | None = None,
) -> Applied:
    """Merge a push's deltas into rows and write what the feed must tell of it.

    Args:
        named: its deltas, `by_row`.
        arrival: the push's last arrival.
        hot: its rows as they are, where they were read already.
    """
    rows, alike, spelled = named
    texts = iter(spelled)
    hot = commit.hot_rows(rows.keys()) if hot is None else hot
    allowed = frozenset(sender.keys)
    after: dict[RowKey, HotRow] = {}
    moves: list[Move] = []
    stays: dict[tuple[str, ...], int] = {}
    clean = True
    columns: tuple[str, ...] = ()
    noted = False
    at = arrival - ARRIVAL_STEP * len(rows)
    for key, changes in rows.items():
        at += ARRIVAL_STEP
        before, delta, text = hot.get(key), changes[0], next(texts, None)
        if (
            before is not None
            and delta.hlc > before.newest
            and delta.op == "UPDATE"
            and len(changes) == 1
            and sender.in_line
        ):
            names = alike or tuple([cell.column for cell in delta.columns])
            if names is not columns and names != columns:
                columns, noted = names, bool(names) and not index.reads(delta.columns)
            if noted and (before.keys in stays or not allowed.isdisjoint(before.keys)):
                after[key] = before.overwritten(delta, columns, at, sender.client_id)
                stays[before.keys] = at
                continue
        if before is None and delta.op == "INSERT" and delta.columns and len(changes) == 1:
            keys = _keys_at_birth(delta, index)
            if keys in stays or not allowed.isdisjoint(keys):
                after[key] = HotRow.of_birth(delta, keys, at, text)
                stays[keys] = at
                continue
        row = before.merged() if before is not None else StoredRow(*key, arrival=0, state=RowState())
        row, moved, returned = _applied(row, changes, at, allowed, index)
        stayed = born = 0
        if before is not None:
            if moved:
                moves += told_at_birth(before, key)
            else:
                stayed, born = before.stayed, before.born
        moves += moved
        if returned:
            clean = False
            moves.append(move(row, own_bucket(sender.client_id), at, "own"))
        after[key] = HotRow.of(row, stayed, born)
    commit.put_hot_rows(after, moves, _by_bucket(stays))
    return Applied(clean)


def repeated(commit: Commit, deltas: Iterable[RowDelta], sender: Sender, seen: int) -> bool:
    """Note that a client repeated what it wrote to rows: it may have put them back from a backup.

    Args:
        commit: of the push.
        deltas: those that it repeated; the push may bring something new for their rows.
        sender: who repeated them.
        seen: the cursor that it was sure to have.

    Returns:
        Whether it has to be sent something of them: they are out of its sight, or were deleted since.
    """
    allowed = frozenset(sender.keys)
    latest = {delta.key: delta for delta in deltas}
    again = {key: delta.stamp for key, delta in latest.items() if delta.op != "DELETE"}
    lost = [
        row
        for row in commit.rows(again.keys()).values()
        if allowed.isdisjoint(row.keys) or (row.state.tombstone is not None and again[row.key] <= row.state.tombstone)
    ]
    settled = [row for row in lost if not _is_astray(row, sender.client_id, seen)]
    rows, moves = [], []
    for row, at in zip(settled, commit.next_arrivals(len(settled)), strict=True):
        after = row.copy()
        note_writer(after, sender.client_id, at)
        after.writers[sender.client_id] = (-at, at)  # astray
        rows.append(after)
        moves.append(move(after, own_bucket(sender.client_id), at, "own"))
    if rows:
        commit.put_rows(rows)
        commit.put_moves(moves)
    return bool(lost)


def _is_astray(row: StoredRow, client_id: str, seen: int) -> bool:
    """Whether the client has still to be sent what became of its last delta."""
    inserted, at = row.writers.get(client_id, _NO_WRITER)
    return inserted == -at and at > seen


def _by_bucket(stays: Mapping[tuple[str, ...], int]) -> dict[str, int]:
    """The newest of the moves in each bucket, of those in each set of them."""
    return {bucket: at for keys, at in sorted(stays.items(), key=itemgetter(1)) for bucket in keys}


def _applied(
    before: StoredRow, changes: Sequence[RowDelta], at: int, allowed: frozenset[str], index: BucketIndex
) -> tuple[StoredRow, list[Move], bool]:
    """A row after its deltas of a push; its moves; whether the sender has to be sent something of it."""
    client_id = changes[0].client_id
    if len(changes) == 1 and before.state.is_before(changes[0]):
        row, touch = overwrite(before, changes[0], at), _OVERWRITES[changes[0].op]
    else:
        row, touch = before.copy(), _Touch()
        row.arrival = at
        state = RowMerge(row.state)
        for delta in changes:
            touch.merge(row, state, delta, at)
        row.state = state.state()
        note_writer(row, client_id, at, inserted=touch.inserted, deleted=touch.deleted)
    moves = _moves(touch, row, index) if touch.changed else []
    had, has = not allowed.isdisjoint(before.keys), not allowed.isdisjoint(row.keys)
    blind = touch.blind or (not touch.deleted and before.writers.get(client_id, _NO_WRITER)[0] == 0)
    kept = had and not touch.deleted  # an UPDATE after its own DELETE finds nothing to change
    late = not had and any(delta.op == "INSERT" and delta.stamp < _newest(before.state) for delta in changes)
    stale = touch.stale or not has or late or (blind if touch.inserted else not kept)
    if stale and touch.last_op != "DELETE":
        row.writers[client_id] = (-at, at)  # astray
    if not has:
        return row, moves, touch.last_op != "DELETE" or touch.stale
    # where the sender comes to see the row, what others wrote comes with it, and what it wrote itself before
    more = not had and any(not came_with_insert(row, part.stamp, client_id) for part in row.state.live)
    return row, moves, stale or touch.contested or more


def _newest(state: RowState) -> Stamp:
    """The stamp of the newest that a row has.

    A DELETE that hid the row from a client may have had it: such a client takes no INSERT of its own that is older.
    """
    newest = state.live[-1].stamp if state.live else NO_STAMP
    return max(newest, state.inserted or NO_STAMP)


def came_with_insert(row: StoredRow, stamp: Stamp, client_id: str) -> bool:
    """Whether a client that inserted the row has the columns of a stamp by that INSERT, or wrote them later.

    What it wrote before that it may have lost with the row, when the row left its sight.
    """
    inserted = row.state.inserted
    return stamp[1] == client_id and inserted is not None and inserted[1] == client_id and stamp >= inserted


def keys_of(row: StoredRow, index: BucketIndex) -> tuple[str, ...]:
    """The bucket keys that a row belongs into, sorted; none where it is not visible."""
    if not row.state.visible:
        return ()
    if index.everything:
        return _EVERYTHING
    return tuple(sorted(index.row_keys(row.table, row.state.values())))


def _keys_at_birth(delta: RowDelta, index: BucketIndex) -> tuple[str, ...]:
    """`keys_of` the row that an INSERT with columns makes."""
    if index.everything:
        return _EVERYTHING
    return tuple(sorted(index.row_keys(delta.table, {cell.column: cell.value for cell in delta.columns})))


def move(row: StoredRow, bucket: str, arrival: int, kind: MoveKind) -> Move:
    """A move of the row's entry under one bucket key."""
    return Move(bucket, row.table, row.row_id, arrival, kind)


def _moves(touch: _Touch, row: StoredRow, index: BucketIndex) -> list[Move]:
    """Give the row its new keys; its leaves, joins and stays.

    A row that stayed visible although a tombstone took columns from it leaves and joins again: whoever has it must
    drop those columns.
    """
    old, new = row.keys, keys_of(row, index)
    if touch.deleted:
        alive = row.state.values()
        row.touched = {column: at for column, at in row.touched.items() if column in alive}
    if touch.voided:
        row.emptied = row.arrival
    row.keys = new
    moves = [move(row, bucket, row.arrival, "leave") for bucket in old if touch.voided or bucket not in new]
    for bucket in new:
        again = touch.voided or bucket not in old
        moves.append(move(row, bucket, row.arrival, "join" if again else "stay"))
    return moves
