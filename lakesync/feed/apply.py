"""Merges a push's deltas into the stored rows, and computes the moves of their feed entries.

`engine.pushing` calls `apply` in the transaction of a push. After a crash, a store may call it through the engine, to
apply pushes of its log again.

- A *delta* is an INSERT, UPDATE or DELETE of some columns of one row. Its *stamp* is the client's timestamp of the
  write (a hybrid logical clock, *hlc*) and the client id. The greatest stamp wins each column. The *tombstone* is the
  stamp of a row's DELETE: columns with smaller or equal stamps are removed.
- An *arrival* is the commit's timestamp by the gateway, which is one app's stream of changes. Each row of a push gets
  an arrival of its own.
- A *bucket key* names a bucket of the sync rules with the claims that may see it. A row has one *feed entry* for each
  bucket key: when it joined the bucket, left it, and last changed in it. A *move* is a change of an entry.
- The *sender* is the client that pushes. It is not sent its own writes, because it has them. There are three
  exceptions: it lost a conflict, it may not see the row, or its copy of the row may differ from the merged row (the
  copy is *astray*). Such a change is a move under the client's own bucket key, so that its next pull reads the row.
- A stored row may have *unmerged* deltas: they are certain to win, so they are merged (*folded*) when the row's values
  are needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from sys import intern
from typing import NamedTuple

from lakesync.feed.push_rows import PushRows
from lakesync.feed.row_buckets import change_keys, keys_of, own_move
from lakesync.feed.row_presence import has_from_insert
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, RowKey, Stamp
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import ARRIVAL_STEP, Move, StoredRow
from lakesync.staging.records.rows import MAX_UNMERGED_WIDTH
from lakesync.staging.store.push import RowCommit
from lakesync.wire.encoded import NO_STAMP


class Sender(NamedTuple):
    """The client that pushes, and what it may see."""

    client_id: str
    keys: Collection[str]
    """The bucket keys that the client may see."""
    reindexed: bool
    """Whether all stored rows have the bucket keys of the active rules. False while a *re-index* computes the keys
    again, after the rules changed."""


class _RowEffect:
    """What the deltas of one push do to one row, collected delta by delta.

    "The sender's copy" is the row in the sender's own database, after it applied its deltas there.
    """

    changed = False
    """Whether the row's state changed."""
    columns_removed = False
    """Whether a DELETE advanced the tombstone of a row with columns, so that clients may have to drop columns."""
    lost_to_others = False
    """Whether newer values of other clients won columns against the sender, which must be sent these values."""
    copy_differs = False
    """Whether the sender's copy certainly differs from the merged row by more than columns that others won."""
    deleted = False
    """Whether the push deletes the row."""
    inserted = False
    """Whether the push inserts the row, after any DELETE in it."""
    updated_first = False
    """Whether the push updates the row before it inserts it. In the sender's copy, that UPDATE may have found no row
    and changed nothing, while it counts in the merged row."""
    last_op = ""
    """The operation of the last delta."""

    def merge(self, state: RowState, delta: RowDelta, row_arrival: int) -> None:
        """Merge one delta into a row's state, and record its effect here.

        Args:
            state: the row's state, which is changed.
            delta: the delta; the deltas of a row come in the order of the push.
            row_arrival: the row's arrival in this push.
        """
        op, had_columns, tombstone = delta.op, bool(state.cells), state.tombstone
        outcome = state.merge(delta, row_arrival)
        self.last_op = op
        if outcome.changed:
            self.changed = True
        if outcome.lost:
            self._record_lost_columns(state, delta, outcome.lost, row_arrival)
        if op == "DELETE":
            self.deleted, self.inserted, self.updated_first = True, False, False
            self.columns_removed |= had_columns and state.tombstone != tombstone
            self.copy_differs |= state.visible  # the DELETE lost: the row lives on, but the sender has deleted its copy
            return
        if op == "INSERT":
            self.inserted = True
        elif not self.inserted:
            self.updated_first = True
        if delta.is_empty_update or (tombstone is not None and delta.stamp <= tombstone):
            # the sender has in its copy what an erasure or an older DELETE has removed from the merged row
            self.copy_differs |= state.visible

    def _record_lost_columns(self, state: RowState, delta: RowDelta, lost: Iterable[str], row_arrival: int) -> None:
        """Record the columns that a delta lost, to a tombstone or to another value.

        Args:
            state: the row's state after the merge.
            delta: the delta.
            lost: the columns whose values the merge did not accept.
            row_arrival: the row's arrival in this push.
        """
        for column in lost:
            cell = state.cells.get(column)
            if cell is not None and cell.origin.client_id != delta.client_id:
                # the value counts as changed now, so that the sender is sent it
                state.touch((column,), row_arrival)
                self.lost_to_others = True
            else:
                # A tombstone covers the value, or the sender's own earlier write is newer because its clock went back.
                # The sender's copy has the value.
                self.copy_differs = True


def apply(
    commit: RowCommit,
    rows: PushRows,
    sender: Sender,
    arrival: int,
    index: BucketIndex,
    stored: Mapping[RowKey, StoredRow] | None = None,
) -> bool:
    """Merge a push's deltas into rows, and store rows and feed entries.

    Two common cases are short cuts, for speed. One is the INSERT of a new row. The other is an INSERT or UPDATE of an
    existing row with a new hlc, and with equal values in the columns that rules read. It wins every column and moves
    the row to no other bucket, so that it can be merged later (`StoredRow.with_unmerged`).

    Args:
        commit: the open transaction that stores the push.
        rows: the push's deltas, by row. Deltas that were accepted before are not among them.
        sender: the client that pushes, and what it may see.
        arrival: the push's last arrival.
        index: computes the bucket keys of a row by the active rules.
        stored: the rows before the push; None to read them here.

    Returns:
        Whether the sender's copies of these rows are right, so that it need not be sent anything about them.
    """
    deltas = rows.deltas
    stored = commit.unfolded_rows(deltas.keys()) if stored is None else stored
    client_id, allowed = intern(sender.client_id), frozenset(sender.keys)
    after: list[StoredRow] = []
    moves: list[Move] = []
    sender_is_current = True
    # the columns that rules read, by all columns of a delta; only of deltas that may be merged later
    ruled = {
        names: [name for name in names if name in index.columns]
        for names in rows.distinct_columns
        if sender.reindexed and 0 < len(names) <= MAX_UNMERGED_WIDTH
    }
    row_arrival = arrival - ARRIVAL_STEP * len(deltas)  # each row gets an arrival, the last one that of the push
    for (key, changes), columns in zip(deltas.items(), rows.columns, strict=True):
        row_arrival += ARRIVAL_STEP
        before, delta = stored.get(key), changes[0]
        # the short cut for a delta that wins every column and changes no bucket key, in a row that the sender sees
        if len(changes) == 1 and before is not None and delta.op != "DELETE" and delta.hlc > before.newest_hlc:
            to_compare = ruled.get(columns)
            if (
                to_compare is not None
                and not allowed.isdisjoint(before.keys)
                and (not to_compare or _has_values(before, delta, to_compare))
            ):
                row = before.with_unmerged(delta, columns, client_id, row_arrival)
                after.append(row)
                if delta.op == "INSERT" and _has_only_updated(before, client_id):
                    row.mark_astray(client_id, row_arrival)
                    sender_is_current = False
                    moves.append(own_move(row, client_id, row_arrival))
                continue
        # the short cut for the INSERT of a row that the sender sees
        if before is None and delta.op == "INSERT" and len(changes) == 1:
            row = StoredRow.of_insert(key, delta, client_id, row_arrival)
            row.keys = keys_of(row, index)
            if not allowed.isdisjoint(row.keys):
                after.append(row)
                moves += [Move(bucket, *key, row_arrival, "join") for bucket in row.keys]
                continue
        if before is None:
            before = StoredRow(key, arrival=row_arrival, state=RowState())
        row, row_moves, must_send = _merged(
            before, changes, client_id, row_arrival, allowed, index, reindexed=sender.reindexed
        )
        after.append(row)
        moves += row_moves
        if must_send:
            sender_is_current = False
            moves.append(own_move(row, client_id, row_arrival))
    commit.put_rows(after, moves)
    return sender_is_current


def _merged(
    before: StoredRow,
    changes: Sequence[RowDelta],
    client_id: str,
    row_arrival: int,
    allowed: frozenset[str],
    index: BucketIndex,
    *,
    reindexed: bool,
) -> tuple[StoredRow, list[Move], bool]:
    """Merge a push's deltas into one row: the general case of `apply`.

    Besides the merge, two questions are answered. Is the sender's copy of the row astray afterwards? Must the sender be
    sent something about the row: because its copy is astray, because others won columns, because it lacks columns of a
    row that it may see only now, or because it must drop a row that it may not see?

    Args:
        before: the row before the push.
        changes: the push's deltas of the row.
        client_id: the sender's id.
        row_arrival: the row's arrival in this push.
        allowed: the bucket keys that the sender may see.
        index: computes the bucket keys of a row by the active rules.
        reindexed: whether all stored rows have the bucket keys of the active rules.

    Returns:
        The row after the push, the moves of its entries, and whether the sender must be sent something about the row.
    """
    row, effect = before.copy(), _RowEffect()
    state = row.state
    moves: list[Move] = []
    for delta in changes:
        effect.merge(state, delta, row_arrival)
    row.note_writer(client_id, row_arrival, inserted=effect.inserted, deleted=effect.deleted)
    if effect.changed:
        row.arrival = row_arrival
        # bucket keys are computed only if a column that rules read may have changed
        if effect.columns_removed or not (reindexed and _has_same_keys(before.state, state, index)):
            # An UPDATE cannot remove columns: clients that had the row before are sent DELETE and INSERT.
            if effect.columns_removed:
                row.no_update_before = row_arrival
            moves = change_keys(row, keys_of(row, index), row_arrival, rejoins=effect.columns_removed)
    # `saw_row`, `sees_row`: whether the sender may see the row before and after the push. `astray`: whether the
    # sender's own copy of the row may differ from the merged row by more than columns that others won.
    saw_row = not allowed.isdisjoint(before.keys)
    sees_row = saw_row if row.keys is before.keys else not allowed.isdisjoint(row.keys)
    # It is astray if the sender may not see the row, or if one of the following cases applies.
    astray = effect.copy_differs or not sees_row
    if effect.inserted:  # the INSERT created the sender's copy, unless the sender had an older one
        astray = astray or effect.updated_first or (not effect.deleted and _has_only_updated(before, client_id))
    else:  # at the sender, an UPDATE changes nothing if it deleted the row itself or was not sent the row
        astray = astray or effect.deleted or not saw_row
    if not saw_row:
        # When the row was hidden from the sender, it was sent a DELETE. If that is newer than its INSERT here, a client
        # that resolves conflicts by stamp has rejected its own INSERT.
        newest_stamp = _newest_stamp(before.state)
        astray = astray or any(delta.op == "INSERT" and delta.stamp < newest_stamp for delta in changes)
    if astray and effect.last_op != "DELETE":
        row.mark_astray(client_id, row_arrival)
    if not sees_row:  # a sender that may not see the row must drop its copy, unless it deleted the row
        return row, moves, effect.last_op != "DELETE" or effect.copy_differs
    # a sender that may see the row only since this push needs the columns of others, and its own earlier ones
    lacks_columns = not saw_row and any(not has_from_insert(row, origin.stamp, client_id) for origin in state.origins)
    return row, moves, astray or effect.lost_to_others or lacks_columns


def _has_values(row: StoredRow, delta: RowDelta, columns: Sequence[str]) -> bool:
    """Return whether a row has the values that a delta writes to some of its columns.

    Args:
        row: the row.
        delta: the delta.
        columns: names of columns of the delta.
    """
    equal = [row.value(cell.column) == cell.value for cell in delta.columns if cell.column in columns]
    return all(equal)


def _has_only_updated(row: StoredRow, client_id: str) -> bool:
    """Return whether a client is known to have updated a row, but not to have inserted it.

    If it inserts the row now, its copy may be an older row with columns that the INSERT does not have.
    """
    writer = row.writers.get(client_id)
    return writer is not None and writer.has_only_updated


def _newest_stamp(state: RowState) -> Stamp:
    """Return the newest stamp of a row; a DELETE that hid the row from a client has at most this stamp."""
    return max([state.inserted or NO_STAMP, *[cell.origin.stamp for cell in state.cells.values()]])


def _has_same_keys(before: RowState, after: RowState, index: BucketIndex) -> bool:
    """Return whether two states of a row certainly have the same bucket keys: all columns that rules read are equal."""
    if not (before.visible and after.visible):
        return False
    return not index.columns or all(before.value(column) == after.value(column) for column in index.columns)
