"""Moves of feed entries, summed up so that one statement writes the entries of many pushes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from lakesync.model.types import RowKey
from lakesync.staging.records import Move, MoveKind, StoredRow


class EntryChange(msgspec.Struct, frozen=True, gc=False):
    """What commits do to one entry. A 0 leaves the stored arrival as it is; `first` only ever replaces a 0."""

    first: int
    since: int
    left: int
    """Where it joins: the latest leaving before that, in this change. Else the leaving, where it leaves."""
    changed: int
    inside: bool | None
    """None: as it was; not inside where the entry is new."""

    def then(self, later: EntryChange) -> EntryChange:
        """Both, one after the other."""
        if later.since:
            left = later.left or (self.changed if self.inside is False else self.left)
        else:
            left = self.left if self.since else later.left or self.left
        return EntryChange(
            first=self.first or later.first,
            since=later.since or self.since,
            left=left,
            changed=later.changed,
            inside=self.inside if later.inside is None else later.inside,
        )


MoveSums = dict[str, dict[RowKey, EntryChange]]
"""Bucket key → row → the sum of its moves."""


def change_of(kind: MoveKind, at: int) -> EntryChange:
    """A move at the arrival `at`, as a change."""
    if kind == "join":
        return EntryChange(at, at, 0, at, True)
    if kind == "leave":
        return EntryChange(0, 0, at, at, False)
    return EntryChange(at if kind == "own" else 0, 0, 0, at, None)


def add_moves(sums: MoveSums, moves: Iterable[Move]) -> None:
    """Add moves, in their order."""
    for move in moves:
        of_bucket = sums.get(move.bucket)
        if of_bucket is None:
            of_bucket = sums[move.bucket] = {}
        key, change = (move.table, move.row_id), change_of(move.kind, move.arrival)
        before = of_bucket.get(key)
        of_bucket[key] = change if before is None else before.then(change)


def add_sums(sums: MoveSums, later: MoveSums) -> None:
    """Add later sums, which are not used any more."""
    for bucket, changes in later.items():
        of_bucket = sums.setdefault(bucket, changes)
        if of_bucket is not changes:
            for key in of_bucket.keys() & changes.keys():
                changes[key] = of_bucket[key].then(changes[key])
            of_bucket.update(changes)


def changes_of(row: StoredRow, sums: MoveSums) -> Iterator[tuple[str, EntryChange]]:
    """The changes of a row's entries under its own keys: there it has come to its arrival at least.

    Args:
        row: the row.
        sums: of moves that rows do not tell; those under the row's keys are taken out.
    """
    stayed = change_of("stay", row.arrival)
    for bucket in row.keys:
        of_bucket = sums.get(bucket)
        change = of_bucket.pop((row.table, row.row_id), None) if of_bucket else None
        if change is None:
            yield bucket, stayed
        else:
            yield bucket, change if change.changed >= row.arrival else change.then(stayed)


def newest_of(rows: Iterable[StoredRow], moves: Iterable[Move]) -> dict[str, int]:
    """Bucket key → the latest place of any of the rows or moves under it."""
    places: dict[tuple[str, ...], int] = {}
    for row in rows:
        if row.arrival > places.get(row.keys, 0):
            places[row.keys] = row.arrival
    newest: dict[str, int] = {}
    for keys, at in places.items():
        for bucket in keys:
            newest[bucket] = max(at, newest.get(bucket, 0))
    for move in moves:
        newest[move.bucket] = max(move.arrival, newest.get(move.bucket, 0))
    return newest
