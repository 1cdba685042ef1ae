"""Combines moves of feed entries, so that one statement writes the entries of many pushes.

A *bucket key* names a bucket of the sync rules with the claims that may see it. A *feed entry* is a row's history under
one bucket key: when it first joined the bucket, last joined it, last left it, and last changed in it. A *move* is one
change of an entry: the row joins the bucket, leaves it, or changes inside. Times are *arrivals*: the timestamps of
commits by the gateway, which is one app's stream of changes. Both stores call this module: SQLite combines the moves of
several seconds, Postgres those of one commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from lakesync.model.types import RowKey
from lakesync.staging.records import Move, MoveKind, StoredRow


class EntryChange(msgspec.Struct, frozen=True, gc=False):
    """The effect of one or more moves on an entry. Numbers are arrivals; 0 keeps the stored value.

    A pull needs them all: a client that has everything up to an arrival must be sent a row that changed in the bucket
    since, and the DELETE of one that was inside at that arrival and has left.
    """

    first: int
    """When the row first joined the bucket; it is stored only if the stored value is 0."""
    since: int
    """When the row last joined the bucket."""
    left: int
    """If the change only leaves: when it leaves. If it joins: when the row last left before that join; 0 if that leave
    is not a part of this change."""
    changed: int
    """When the row last changed inside the bucket, or left it."""
    inside: bool | None
    """Whether the row is inside the bucket afterwards; None keeps the stored value (False in a new entry)."""

    def then(self, later: EntryChange) -> EntryChange:
        """Return the combined effect of this change and a later one.

        A join at 5, a leave at 7 and a join at 9 combine to `first` 5, `since` 9, `left` 7 and `changed` 9.

        `left` depends on whether one of them joins, because it is then the time of the leave before that join.
        """
        if later.since:
            # The later change joins. The leave before that is in the later change itself; or this change ends with a
            # leave (`inside` is False, and `changed` its time); or this change also joined, and has an earlier leave.
            left = later.left or (self.changed if self.inside is False else self.left)
        elif self.since:
            left = self.left  # this change joins; a leave after that is `changed` of the entry
        else:
            left = later.left or self.left  # neither joins: the latest leave
        return EntryChange(
            first=self.first or later.first,
            since=later.since or self.since,
            left=left,
            changed=later.changed,
            inside=self.inside if later.inside is None else later.inside,
        )


ENTRY_UPSERT = (
    "first = CASE entry.first WHEN 0 THEN excluded.first ELSE entry.first END,"
    " since = CASE WHEN excluded.since > entry.since THEN excluded.since ELSE entry.since END,"
    # If it joins, and this is no replay after a crash: when it left before. The change says so itself, or the stored
    # entry is outside, and its last change was the leave.
    " left_at = CASE WHEN excluded.since <= entry.since THEN entry.left_at"
    " WHEN excluded.left_at > 0 THEN excluded.left_at"
    " WHEN entry.inside OR entry.since = 0 THEN entry.left_at ELSE entry.changed END,"
    " changed = CASE WHEN excluded.changed > entry.changed THEN excluded.changed ELSE entry.changed END,"
    # unchanged if it neither joined nor left
    " inside = CASE WHEN excluded.since = 0 AND excluded.left_at = 0 THEN entry.inside ELSE excluded.inside END"
)
"""SQL for SQLite and Postgres: the assignments, after DO UPDATE SET, that apply an `EntryChange` to the stored entry.

Applying the changes of an entry again, in their order, ends in the same entry. A replay after a crash needs that,
because the file may contain them already."""


MoveSums = dict[str, dict[RowKey, EntryChange]]
"""The combined effect of the moves of each row, by bucket key and row key."""


def change_of(kind: MoveKind, arrival: int) -> EntryChange:
    """Return the effect of one move.

    Args:
        kind: `join`: the row enters the bucket. `leave`: it leaves the bucket. `stay`: it changes inside. `own`: it
            changes for one client alone, for example because that client lost a conflict. Such an entry is under the
            client's own key (`@client`), which no row is ever inside of; its `first` says since when it exists.
        arrival: the move's arrival (the gateway's own HLC timestamp of the push).
    """
    if kind == "join":
        return EntryChange(arrival, arrival, 0, arrival, True)
    if kind == "leave":
        return EntryChange(0, 0, arrival, arrival, False)
    return EntryChange(arrival if kind == "own" else 0, 0, 0, arrival, None)


def add_moves(sums: MoveSums, moves: Iterable[Move]) -> None:
    """Combine moves with `sums`, in their order.

    Args:
        sums: the earlier moves; this dictionary has the result.
        moves: the later moves.
    """
    for move in moves:
        of_bucket = sums.get(move.bucket)
        if of_bucket is None:
            of_bucket = sums[move.bucket] = {}
        key, change = (move.table, move.row_id), change_of(move.kind, move.arrival)
        before = of_bucket.get(key)
        of_bucket[key] = change if before is None else before.then(change)


def add_sums(sums: MoveSums, later: MoveSums) -> None:
    """Combine later moves with earlier ones, in place.

    Args:
        sums: the earlier moves; this dictionary has the result.
        later: the later moves. Its dictionaries become parts of `sums`, so it must not be used afterwards.
    """
    for bucket, changes in later.items():
        of_bucket = sums.setdefault(bucket, changes)
        if of_bucket is not changes:
            for key in of_bucket.keys() & changes.keys():
                changes[key] = of_bucket[key].then(changes[key])
            of_bucket.update(changes)


def take_changes(row: StoredRow, sums: MoveSums) -> Iterator[tuple[str, EntryChange]]:
    """Yield the changes of a row's entries under its current bucket keys, each with its key; take them out of `sums`.

    A push stores no moves for a row that stays under its keys, because they follow from the row's arrival and keys. So
    `changed` of each change is at least the row's arrival.

    Args:
        row: the stored row.
        sums: the combined explicit moves; those of this row under its current keys are removed from it.
    """
    stayed = change_of("stay", row.arrival)
    for bucket in row.keys:
        of_bucket = sums.get(bucket)
        change = of_bucket.pop(row.key, None) if of_bucket else None
        if change is None:
            yield bucket, stayed
        else:  # moves before the row's arrival lack the row's own change
            yield bucket, change if change.changed >= row.arrival else change.then(stayed)


def newest_of(rows: Iterable[StoredRow], moves: Iterable[Move]) -> dict[str, int]:
    """Return, by bucket key, the latest arrival of any of the rows or moves under it.

    Args:
        rows: changed rows, each under its current bucket keys.
        moves: explicit moves.
    """
    by_keys: dict[tuple[str, ...], int] = {}  # many rows have the same keys
    for row in rows:
        if row.arrival > by_keys.get(row.keys, 0):
            by_keys[row.keys] = row.arrival
    newest: dict[str, int] = {}
    for keys, arrival in by_keys.items():
        for bucket in keys:
            newest[bucket] = max(arrival, newest.get(bucket, 0))
    for move in moves:
        newest[move.bucket] = max(move.arrival, newest.get(move.bucket, 0))
    return newest
