"""The write side of the feed: merges a push's deltas into rows, and computes the moves of their feed entries.

`engine.pushing` calls `apply` and `record_repeats` in the transaction of a push. A store calls `apply` through the
engine to replay its log. `engine.rebuild`, `feed.reindex` and `feed.pull` use the small functions.

- A *delta* is an INSERT, UPDATE or DELETE of some columns of one row. Its *stamp* is the client's timestamp of the
  write (a hybrid logical clock, *hlc*) and the client id. The greatest stamp wins each column. The *tombstone* is the
  stamp of a row's DELETE: columns with smaller or equal stamps are removed.
- An *arrival* is the gateway's own timestamp of a commit. Each row of a push gets an arrival of its own.
- A *bucket key* names a bucket of the sync rules with the claims that may see it. A row has one *feed entry* for each
  bucket key: when it joined the bucket, left it, and last changed in it. A *move* is a change of an entry.
- The *sender* is the client that pushes. It is not sent its own writes, because it has them. There are three
  exceptions: it lost a conflict, it may not see the row, or its copy of the row may differ from the merged row (the
  copy is *astray*). Such a change is a move under the client's own key (`own_bucket`), so that the client's next pull
  reads the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from sys import intern
from typing import NamedTuple

from lakesync.model.merge import RowState, intern_names
from lakesync.model.types import RowDelta, RowKey, Stamp
from lakesync.rules.keys import EVERYTHING, BucketIndex
from lakesync.staging.records import ARRIVAL_STEP, Move, MoveKind, StoredRow
from lakesync.staging.records.rows import COLUMNS_UNMERGED, NARROW
from lakesync.staging.store.push import RowCommit
from lakesync.wire.encoded import NO_STAMP

_EVERYTHING = (EVERYTHING,)
"""The bucket key of every row of a gateway without rules."""
_NO_MOVES: Sequence[Move] = ()
"""No moves: one object for all rows whose entries do not change."""


class PushRows(NamedTuple):
    """The deltas of one push by row."""

    deltas: Mapping[RowKey, Sequence[RowDelta]]
    """In order of first appearance. Keys of one table share its name as one object, so that comparing keys is fast."""
    shared_columns: tuple[str, ...]
    """The columns that each delta has, in this order; empty if they differ or a delta has none."""
    cells: int
    """The number of column values in all deltas together."""


class Sender(NamedTuple):
    """The client that pushes, and what it may see."""

    client_id: str
    keys: Collection[str]
    """The bucket keys that the client may see."""
    reindexed: bool
    """Whether all stored rows have the bucket keys of the active rules. False while a re-index is running, which
    computes the keys again after the rules changed."""


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
        if tombstone is not None and delta.stamp <= tombstone:
            self.copy_differs |= state.visible  # an older DELETE covers the delta, which the sender has in its copy

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


def by_row(deltas: Sequence[RowDelta]) -> PushRows:
    """Group the deltas of a push by row; `engine.pushing` calls this before the transaction begins.

    Args:
        deltas: the push's deltas, at least one. No delta has a column twice.
    """
    # All columns in one list equal a repetition of the first delta's only if every delta has the same columns in the
    # same order, because no delta has a column twice. One comparison of lists is faster than one for each delta.
    columns = tuple([cell.column for cell in deltas[0].columns])
    cells = [cell.column for delta in deltas for cell in delta.columns]
    shared = intern_names(columns) if cells == [*columns] * len(deltas) else ()
    # most pushes have one delta for each row
    single: dict[RowKey, Sequence[RowDelta]] = {(intern(delta.table), delta.row_id): (delta,) for delta in deltas}
    if len(single) == len(deltas):
        return PushRows(single, shared, len(cells))
    rows: dict[RowKey, list[RowDelta]] = {}
    for delta in deltas:
        rows.setdefault((intern(delta.table), delta.row_id), []).append(delta)
    return PushRows(rows, shared, len(cells))


def arrivals_of(deltas: Sequence[RowDelta], last: int) -> dict[RowKey, int]:
    """Return each row's arrival in a push: one for each distinct row, in order of first appearance.

    `apply` gives rows the same arrivals; `engine.rebuild` calls this to restore them from the lake.

    Args:
        deltas: the push's deltas.
        last: the push's last arrival, which its log row has.
    """
    rows = by_row(deltas).deltas
    first = last - ARRIVAL_STEP * (len(rows) - 1)
    return {key: first + ARRIVAL_STEP * place for place, key in enumerate(rows)}


def own_bucket(client_id: str) -> str:
    """Return the bucket key of changes that concern one client alone. No key of the sync rules starts with `@`."""
    return f"@{client_id}"


def owner_of(bucket: str) -> str:
    """Return the client id that a bucket key of `own_bucket` belongs to."""
    return bucket.removeprefix("@")


def too_wide(stored: Mapping[RowKey, StoredRow], rows: PushRows, max_columns: int) -> dict[RowKey, int]:
    """Return the rows that a push would give too many columns, with the number of columns after the push.

    A row that has too many already may keep them, but gets no further ones. `engine.checks` rejects the push if there
    is any such row.

    Args:
        stored: the rows before the push; rows that do not exist yet are absent.
        rows: the push's deltas, by row.
        max_columns: the most columns that a row may have.
    """
    # A cheap upper bound first: most pushes are far below the limit. A row may have deltas that are not merged yet
    # (`unmerged`), with at most `COLUMNS_UNMERGED` columns. If the latest of them has exactly the columns of this push,
    # the row gets no new column. Equal names are one tuple object, hence `is`.
    shared = rows.shared_columns
    growing = [row for row in stored.values() if row.unmerged is None or row.unmerged.names is not shared]
    if rows.cells + COLUMNS_UNMERGED + max([len(row.state.cells) for row in growing], default=0) <= max_columns:
        return {}
    wide = {}
    for key, changes in rows.deltas.items():
        # `fold` merges the row's unmerged deltas
        columns_before = stored[key].fold().state.cells if key in stored else {}
        columns_after = columns_before.keys() | {cell.column for delta in changes for cell in delta.columns}
        if len(columns_after) > max(max_columns, len(columns_before)):
            wide[key] = len(columns_after)
    return wide


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
    the row to no other bucket, so that it can be merged later (`StoredRow.written`).

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
    deltas, shared = rows.deltas, rows.shared_columns
    # unfolded: deltas of earlier pushes may not be merged into the rows yet
    stored = commit.unfolded_rows(deltas.keys()) if stored is None else stored
    client_id, allowed = intern(sender.client_id), frozenset(sender.keys)
    own = own_bucket(client_id)
    after: list[StoredRow] = []
    moves: list[Move] = []
    sender_is_current = True
    # `names`: the columns of the last delta; `narrow`: whether they are so few that it may be merged later; `ruled`:
    # those that rules read. They are kept from row to row: most pushes write the same columns of each row.
    names: tuple[str, ...] = ()
    ruled: tuple[str, ...] = ()
    narrow = False
    row_arrival = arrival - ARRIVAL_STEP * len(deltas)  # each row gets an arrival, the last one that of the push
    for key, changes in deltas.items():
        row_arrival += ARRIVAL_STEP
        before, delta = stored.get(key), changes[0]
        # the short cut for a delta that wins every column and changes no bucket key, in a row that the sender sees
        if len(changes) == 1 and before is not None and delta.op != "DELETE" and delta.hlc > before.newest:
            columns = shared or intern_names(tuple([column.column for column in delta.columns]))
            if columns is not names:  # equal names are one tuple object
                names = columns
                narrow = sender.reindexed and 0 < len(names) <= NARROW
                ruled = tuple([name for name in names if name in index.columns])
            if narrow and not allowed.isdisjoint(before.keys) and (not ruled or _has_values(before, delta, ruled)):
                row = before.written(delta, names, client_id, row_arrival)
                after.append(row)
                if delta.op == "INSERT" and _has_only_updated(before, client_id):
                    row.mark_astray(client_id, row_arrival)
                    sender_is_current = False
                    moves.append(move(row, own, row_arrival, "own"))
                continue
        # the short cut for the INSERT of a row that the sender sees
        if before is None and delta.op == "INSERT" and len(changes) == 1:
            row = StoredRow.of_insert(key, delta, client_id, row_arrival)
            row.keys = keys_of(row, index)
            if not allowed.isdisjoint(row.keys):
                after.append(row)
                moves += [move(row, bucket, row_arrival, "join") for bucket in row.keys]
                continue
        if before is None:
            before = StoredRow(key, arrival=row_arrival, state=RowState())
        row, row_moves, must_send = _merged(
            before, changes, client_id, row_arrival, allowed, index, reindexed=sender.reindexed
        )
        after.append(row)
        if row_moves:
            moves += row_moves
        if must_send:
            sender_is_current = False
            moves.append(move(row, own, row_arrival, "own"))
    commit.put_rows(after, moves)
    return sender_is_current


def record_repeats(commit: RowCommit, deltas: Iterable[RowDelta], sender: Sender, known_cursor: int) -> bool:
    """Record that a client repeated deltas: it may have been restored from a backup, and have old rows again.

    Such a client must be sent a DELETE of a row that it may not see. The same holds for a row of which a DELETE by
    another client covers one of the deltas: the client has the columns of that delta again.

    Args:
        commit: the open transaction that stores the push.
        deltas: the deltas that were accepted before; the push may also contain new deltas of their rows.
        sender: the client that pushes, and what it may see.
        known_cursor: the newest cursor that the client certainly has.

    Returns:
        Whether there is such a row, so that the client must be sent something.
    """
    allowed = frozenset(sender.keys)
    oldest: dict[RowKey, Stamp] = {}  # the least stamp of each row's deltas since the client deleted the row itself
    for delta in deltas:
        if delta.op == "DELETE":
            oldest.pop(delta.key, None)
        else:
            oldest[delta.key] = min(oldest.get(delta.key, delta.stamp), delta.stamp)
    outdated = [
        row
        for row in commit.rows(oldest.keys()).values()
        if allowed.isdisjoint(row.keys) or (row.state.tombstone is not None and oldest[row.key] <= row.state.tombstone)
    ]
    # a client that retries the same push again and again causes one move of each row, not one for each retry
    unmarked = [row for row in outdated if not _is_astray(row, sender.client_id, known_cursor)]
    mark_astray(commit, unmarked, sender.client_id)
    return bool(outdated)


def mark_astray(commit: RowCommit, rows: Sequence[StoredRow], client_id: str) -> None:
    """Store that a client's copies of rows may differ from the rows, so that its next pull reads them.

    Args:
        commit: the open transaction that stores the client's push.
        rows: the rows, after the push.
        client_id: the client's id.
    """
    if not rows:
        return
    commit.run_alone()  # no entry of the log leads to these changes, so a replay of the log would lose them
    marked, moves = [], []
    for row, row_arrival in zip(rows, commit.next_arrivals(len(rows)), strict=True):
        after = row.copy()
        after.note_writer(client_id, row_arrival)
        after.mark_astray(client_id, row_arrival)
        marked.append(after)
        moves.append(move(after, own_bucket(client_id), row_arrival, "own"))
    commit.put_rows(marked, moves)


def _is_astray(row: StoredRow, client_id: str, known_cursor: int) -> bool:
    """Return whether the client's copy is marked as astray since its last delta, after `known_cursor`.

    Args:
        row: the stored row.
        client_id: the client's id.
        known_cursor: the newest cursor that the client certainly has.
    """
    writer = row.writers.get(client_id)
    # `StoredRow.mark_astray` stores the negative arrival as `own_copy`; a later delta makes `latest` another one
    return writer is not None and writer.own_copy == -writer.latest and writer.latest > known_cursor


def _merged(
    before: StoredRow,
    changes: Sequence[RowDelta],
    client_id: str,
    row_arrival: int,
    allowed: frozenset[str],
    index: BucketIndex,
    *,
    reindexed: bool,
) -> tuple[StoredRow, Sequence[Move], bool]:
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
    state, moves = row.state, _NO_MOVES
    for delta in changes:
        effect.merge(state, delta, row_arrival)
    row.note_writer(client_id, row_arrival, inserted=effect.inserted, deleted=effect.deleted)
    if effect.changed:
        row.arrival = row_arrival
        # bucket keys are computed only if a column that rules read may have changed
        if effect.columns_removed or not (reindexed and _has_same_keys(before.state, state, index)):
            moves = _moves(effect, row, keys_of(row, index))
    # `saw_row`, `sees_row`: whether the sender may see the row before and after the push. `astray`: whether the
    # sender's own copy of the row may differ from the merged row by more than columns that others won.
    saw_row = not allowed.isdisjoint(before.keys)
    sees_row = saw_row if row.keys is before.keys else not allowed.isdisjoint(row.keys)
    astray = effect.copy_differs or not sees_row
    if effect.inserted:  # the INSERT created the sender's copy, unless the sender had an older one
        astray = astray or effect.updated_first or (not effect.deleted and _has_only_updated(before, client_id))
    else:  # at the sender, an UPDATE changes nothing if it deleted the row itself or was not sent the row
        astray = astray or effect.deleted or not saw_row
    if not saw_row:
        # When the row was hidden from the sender, it was sent a DELETE. If that is newer than its INSERT here, a client
        # that resolves conflicts by stamp has rejected its own INSERT.
        newest = _newest(before.state)
        astray = astray or any(delta.op == "INSERT" and delta.stamp < newest for delta in changes)
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
    return writer is not None and writer.own_copy == 0


def _newest(state: RowState) -> Stamp:
    """Return the newest stamp of a row; a DELETE that hid the row from a client has at most this stamp."""
    return max([state.inserted or NO_STAMP, *[cell.origin.stamp for cell in state.cells.values()]])


def has_from_insert(row: StoredRow, stamp: Stamp, client_id: str) -> bool:
    """Return whether a client certainly has the columns of a stamp, because it wrote them with its INSERT or later.

    Columns that it wrote before its INSERT do not count. It may have lost them with the row, when it could not see the
    row any more.

    Args:
        row: the stored row.
        stamp: the stamp of the columns, (hlc, client id).
        client_id: the client's id.
    """
    inserted = row.state.inserted
    return stamp[1] == client_id and inserted is not None and inserted[1] == client_id and stamp >= inserted


def keys_of(row: StoredRow, index: BucketIndex) -> tuple[str, ...]:
    """Return the bucket keys that a row belongs to by the rules, sorted; none if the row is deleted or empty.

    Args:
        row: the row.
        index: computes the bucket keys of a row by the active rules.
    """
    if not row.state.visible:
        return ()
    if index.shows_all_rows:
        return _EVERYTHING
    return tuple(sorted(index.row_keys(row.table, row.state.values())))


def move(row: StoredRow, bucket: str, arrival: int, kind: MoveKind) -> Move:
    """Return a move of the row's entry under one bucket key.

    Args:
        row: the stored row.
        bucket: the bucket key.
        arrival: the arrival at which the entry changes.
        kind: the kind of change, see `Move`.
    """
    return Move(bucket, row.table, row.row_id, arrival, kind)


def _has_same_keys(before: RowState, after: RowState, index: BucketIndex) -> bool:
    """Return whether two states of a row certainly have the same bucket keys: all columns that rules read are equal."""
    if not (before.visible and after.visible):
        return False
    return not index.columns or all(before.value(column) == after.value(column) for column in index.columns)


def _moves(effect: _RowEffect, row: StoredRow, new: tuple[str, ...]) -> list[Move]:
    """Set a row's new bucket keys, and return the moves from its old keys to them.

    If a DELETE removed columns while the row stayed visible, the row leaves all buckets and joins them again. Clients
    are then sent DELETE and INSERT, because an UPDATE cannot remove columns.

    Args:
        effect: what the push did to the row.
        row: the row after the push, which is changed.
        new: its bucket keys after the push.
    """
    old = row.keys
    if effect.columns_removed:
        row.emptied = row.arrival  # clients that had the row before are sent no UPDATE
    elif new == old:
        return []
    row.keys = new
    moves = [move(row, bucket, row.arrival, "leave") for bucket in old if effect.columns_removed or bucket not in new]
    return moves + [
        move(row, bucket, row.arrival, "join") for bucket in new if effect.columns_removed or bucket not in old
    ]
