"""Bucket keys brought in line with rules that changed."""

from __future__ import annotations

from lakesync.feed.apply import keys_of, move
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import Move
from lakesync.staging.store import Commit
from lakesync.types import RowKey

_SCAN = 1000


def reindex(commit: Commit, index: BucketIndex) -> None:
    """Bring every row's bucket keys in line with `index`, each changed row at a fresh arrival."""
    after: RowKey | None = None
    while rows := commit.scan_rows(after, _SCAN):
        after = rows[-1].key
        changed = []
        for row in rows:
            keys = keys_of(row, index)
            if keys != row.keys:
                changed.append((row, keys))
        moves: list[Move] = []
        for (row, keys), arrival in zip(changed, commit.next_arrivals(len(changed)), strict=True):
            moves += [move(row, bucket, arrival, "leave") for bucket in row.keys if bucket not in keys]
            moves += [move(row, bucket, arrival, "join") for bucket in keys if bucket not in row.keys]
            row.keys = keys
            row.arrival = arrival
        commit.put_rows([row for row, _ in changed])
        commit.put_moves(moves)
