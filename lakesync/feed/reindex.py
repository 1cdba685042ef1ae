"""Writes bucket keys of rows outside of a push: after a change of sync rules, some rows at a time.

`engine.reindexing` calls it in commits of its own until all rows have the keys of the active rules.
"""

from __future__ import annotations

from lakesync.feed.apply import keys_of, move
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import Move, Reindex, StoredRow
from lakesync.staging.store import Commit


def reindex_some(commit: Commit, index: BucketIndex, last: Reindex | None, limit: int) -> Reindex:
    """Update the next rows to the active rules, each at a new arrival.

    The position is stored only when the rows up to it are durable, that is, by the next work.

    Args:
        commit: of the gateway.
        index: of the active rules.
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
        commit.next_arrivals(1)  # a cut under the new rules is above every older one, also where no row has moved
    _bring_in_line(commit, rows, index)
    return Reindex(version, rows[-1].key if rows else after, done=not rows)


def _bring_in_line(commit: Commit, rows: list[StoredRow], index: BucketIndex) -> None:
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
