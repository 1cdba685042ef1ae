"""Writes rows that were changed without a push to the feed: erasures and rebuilds use it."""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.feed.apply import keys_of, move
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import Move, StoredRow
from lakesync.staging.store import Commit


def settle(commit: Commit, rows: Sequence[StoredRow], index: BucketIndex) -> None:
    """Store rows with the bucket keys of their states, and the resulting moves at each row's arrival.

    Args:
        commit: of the gateway.
        rows: the changed rows.
        index: of the active rules.
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
