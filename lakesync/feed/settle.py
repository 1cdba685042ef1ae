"""Rows whose states were made otherwise than by a push, brought into the feed."""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.feed.apply import keys_of, move
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import Move, StoredRow
from lakesync.staging.store import Commit


def settle(commit: Commit, rows: Sequence[StoredRow], index: BucketIndex) -> None:
    """Write rows with the bucket keys that their states give them, and the moves that follow at each row's arrival."""
    moves = [each for row in rows for each in moves_of(row, index)]
    commit.put_rows(rows, moves)


def moves_of(row: StoredRow, index: BucketIndex) -> list[Move]:
    """Give the row the bucket keys that follow from its state; the moves to them, at the row's arrival."""
    keys = keys_of(row, index)
    moves = [move(row, bucket, row.arrival, "leave") for bucket in row.keys if bucket not in keys]
    moves += [move(row, bucket, row.arrival, "join") for bucket in keys if bucket not in row.keys]
    row.keys = keys
    return moves
