"""Marks a client's copies of rows as *astray*: they may differ from the rows, though the client was sent all changes.

This happens to a client that lost its database or was restored from a backup. `engine.pushing` calls these functions in
the transaction of a push that shows it: the client repeats old deltas, or does not know pages that it was sent.
`Engine.replay` calls `mark_astray` when it repeats such a push after a crash. A *cursor* is the number from which a
client pulls next.

The *copy* of a client is the row in its own database. A *delta* is an INSERT, UPDATE or DELETE of some columns of one
row. Its *stamp* is the client's timestamp of the write and the client id. The *tombstone* is the greatest stamp of the
row's DELETEs: columns with smaller or equal stamps are removed. An *arrival* is the commit's timestamp by the gateway,
which is one app's stream of changes. The *feed* lists rows by their latest change, for each bucket of the sync rules,
and for changes that concern one client alone. A *move* changes a row's entry there: here, so that the client's next
pull reads the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lakesync.feed.apply import Sender
from lakesync.feed.row_buckets import own_move
from lakesync.model.types import RowDelta, RowKey, Stamp
from lakesync.staging.records import StoredRow
from lakesync.staging.store.push import RowCommit


def record_repeats(commit: RowCommit, deltas: Iterable[RowDelta], sender: Sender, known_cursor: int) -> bool:
    """Mark the outdated copies of a client that repeats deltas, because it may have old rows again.

    The client must be sent a DELETE of a row that it may not see. The same applies to a row whose tombstone covers one
    of the deltas, unless the client itself deleted the row after it: the client has the columns of that delta again.

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
    unmarked = [row.key for row in outdated if not _is_marked(row, sender.client_id, known_cursor)]
    mark_astray(commit, unmarked, sender.client_id)
    return bool(outdated)


def mark_astray(commit: RowCommit, keys: Collection[RowKey], client_id: str) -> None:
    """Store that a client's copies of rows may differ from the rows, so that its next pull reads them.

    Args:
        commit: the open transaction that stores the client's push.
        keys: the rows, which the push has written already.
        client_id: the client's id.
    """
    if not keys:
        return
    # The log does not have these changes. Alone, a crash loses at most those of this push: `Engine.replay` repeats them
    # if the client lost the push, and otherwise the client, which got no response, repeats the push.
    commit.run_alone()
    marked, moves = [], []
    rows = commit.rows(keys)
    for row, row_arrival in zip(rows.values(), commit.next_arrivals(len(rows)), strict=True):
        after = row.copy()
        after.note_writer(client_id, row_arrival)
        after.mark_astray(client_id, row_arrival)
        marked.append(after)
        moves.append(own_move(after, client_id, row_arrival))
    commit.put_rows(marked, moves)


def _is_marked(row: StoredRow, client_id: str, known_cursor: int) -> bool:
    """Return whether the client's copy was marked after `known_cursor`, and it pushed no delta of the row since.

    Args:
        row: the stored row.
        client_id: the client's id.
        known_cursor: the newest cursor that the client certainly has.
    """
    writer = row.writers.get(client_id)
    return writer is not None and writer.astray_since == writer.latest and writer.latest > known_cursor
