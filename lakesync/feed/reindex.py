"""Writes bucket keys of rows outside of a push: after a change of rules, an erasure or a rebuild.

`engine.reindexing` calls `reindex_some` in commits of its own until all rows have the keys of the active rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.feed.apply import keys_of, move
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import Move, Reindex, StoredRow
from lakesync.staging.store.push import RowCommit


def reindex_some(commit: RowCommit, index: BucketIndex, last: Reindex | None, limit: int) -> Reindex:
    """Update the next rows to the active rules, each at a new arrival.

    The position is stored only when the rows up to it are durable, that is, by the next work.

    Args:
        commit: the open transaction in the gateway's store.
        index: the bucket index of the active rules.
        last: the result of the previous work; None in a process's first work.
        limit: most rows to read.

    Returns:
        The position to pass to the next work, until it is done.
    """
    commit.run_alone()
    version = commit.config.rules_version
    marks = (mark for mark in (last, commit.reindexing()) if mark is not None and mark.rules_version == version)
    mark = next(marks, None)
    if mark is not None and mark.done:
        return mark
    after = mark.after if mark is not None else None
    rows = commit.scan_rows(after, limit)
    commit.put_reindexing(Reindex(version, after, done=not rows))
    if not rows:
        commit.next_arrivals(1)  # so that a checkpoint under the new rules is above older ones even if no row moved
    _bring_in_line(commit, rows, index)
    return Reindex(version, rows[-1].key if rows else after, done=not rows)


def _bring_in_line(commit: RowCommit, rows: list[StoredRow], index: BucketIndex) -> None:
    changed: list[tuple[StoredRow, tuple[str, ...]]] = []
    for row in rows:
        keys = keys_of(row, index)
        if keys != row.keys:
            changed.append((row.copy(), keys))
    moves: list[Move] = []
    for (row, keys), arrival in zip(changed, commit.next_arrivals(len(changed)), strict=True):
        moves += [move(row, bucket, arrival, "leave") for bucket in row.keys if bucket not in keys]
        moves += [move(row, bucket, arrival, "join") for bucket in keys if bucket not in row.keys]
        row.keys = keys
    commit.put_rows([row for row, _ in changed], moves)


def rewrite_rows(commit: RowCommit, rows: Sequence[StoredRow], index: BucketIndex) -> None:
    """Store rows with the bucket keys of their states, and the resulting moves at each row's arrival.

    Args:
        commit: the open transaction in the gateway's store.
        rows: the changed rows.
        index: the bucket index of the active rules.
    """
    moves = [each for row in rows for each in moves_of(row, index)]
    commit.put_rows(rows, moves)


def moves_of(row: StoredRow, index: BucketIndex) -> list[Move]:
    """Set the bucket keys of a row's state, and return the moves to them, at the row's arrival."""
    keys = keys_of(row, index)
    moves = [move(row, bucket, row.arrival, "leave") for bucket in row.keys if bucket not in keys]
    moves += [move(row, bucket, row.arrival, "join") for bucket in keys if bucket not in row.keys]
    row.keys = keys
    return moves
