"""Computes bucket keys of rows outside of a push: after a change of rules, or an erasure (a permanent deletion).

A *bucket key* names a bucket of the sync rules with the claims that may see it. When a row joins or leaves a bucket,
that is a *move* of its feed entry, at an *arrival*: the commit's timestamp by the gateway, which is one app's stream of
changes. `engine.active_rules` calls `reindex_some`, in one commit after another, until all rows have the keys of the
active rules. Stores call `rewrite_rows` through `Engine` for an erasure.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.feed.row_buckets import change_keys, keys_of
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import Move, Reindex, StoredRow
from lakesync.staging.store.push import RowCommit


def reindex_some(commit: RowCommit, index: BucketIndex, last: Reindex | None, limit: int) -> Reindex:
    """Update the bucket keys of the next rows to the active rules. The moves of each changed row get a new arrival.

    A commit stores the position that the previous commit reached, not its own. The SQLite store commits the position
    to `log.db` before it writes the rows to `state.db`, so a crash in between loses the rows of this commit. They are
    then read again; a row that was written already does not change.

    Args:
        commit: the open transaction in the gateway's store.
        index: the bucket index of the active rules.
        last: the result of the previous call; None in a process's first call, which continues after the stored
            position.
        limit: the most rows to read.

    Returns:
        The position to pass to the next call. If its `done` is true, all rows have their keys.
    """
    commit.run_alone()  # the log does not have these changes, so a store cannot restore them from it after a crash
    version = commit.config.rules_version
    candidates = (each for each in (last, commit.reindexing()) if each is not None and each.rules_version == version)
    progress = next(candidates, None)
    if progress is not None and progress.done:
        return progress
    after = progress.after if progress is not None else None
    rows = commit.scan_rows(after, limit)
    commit.put_reindexing(Reindex(version, after, done=not rows))
    if not rows:
        commit.next_arrivals(1)  # so that the next checkpoint (a snapshot of all rows) is above older ones
    _update_keys(commit, rows, index)
    return Reindex(version, rows[-1].key if rows else after, done=not rows)


def rewrite_rows(commit: RowCommit, rows: Sequence[StoredRow], index: BucketIndex) -> None:
    """Store rows whose values an erasure changed, with the bucket keys of their new values.

    Moves into and out of buckets are stored too, at each row's arrival.

    Args:
        commit: the open transaction in the gateway's store.
        rows: copies of the rows, changed; their bucket keys are set here.
        index: the bucket index of the active rules.
    """
    moves = [move for row in rows for move in change_keys(row, keys_of(row, index), row.arrival)]
    commit.put_rows(rows, moves)


def _update_keys(commit: RowCommit, rows: list[StoredRow], index: BucketIndex) -> None:
    """Store the rows whose bucket keys differ by the active rules, with their moves, at a new arrival for each row.

    The row's own `arrival` is that of its last change, and stays.
    """
    changed: list[tuple[StoredRow, tuple[str, ...]]] = []
    for row in rows:
        keys = keys_of(row, index)
        if keys != row.keys:
            changed.append((row.copy(), keys))
    moves: list[Move] = []
    for (row, keys), arrival in zip(changed, commit.next_arrivals(len(changed)), strict=True):
        moves += change_keys(row, keys, arrival)
    commit.put_rows([row for row, _ in changed], moves)
