"""Bucket keys brought in line with rules that changed, some rows at a time."""

from __future__ import annotations

from lakesync.feed.apply import keys_of, move
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import Move, Reindex, StoredRow
from lakesync.staging.store import Commit


def reindex_some(commit: Commit, index: BucketIndex, last: Reindex | None, limit: int) -> Reindex:
    """Bring the next rows in line with the rules in force, each at a fresh arrival.

    A mark is written only once the rows up to it are lasting, that is by the work after the one that did them.

    Args:
        index: of the rules in force.
        last: what the work before this one returned; None for the first of a process.
        limit: most rows to look at.

    Returns:
        How far the rows are; to be handed to the next work until it is done.
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
