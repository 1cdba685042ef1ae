"""Moves folded into one change a feed entry, so that one statement writes a whole push."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lakesync.staging.records import Move


class EntryChange(NamedTuple):
    """What a commit does to one entry. A 0 leaves the stored arrival as it is; `first` only ever fills a 0."""

    first: int
    since: int
    left: int
    changed: int
    inside: bool | None
    """None: as it was; not inside where the entry is new."""

    def then(self, later: EntryChange) -> EntryChange:
        """Both, one after the other."""
        return EntryChange(
            first=self.first or later.first,
            since=later.since or self.since,
            left=later.left or self.left,
            changed=later.changed,
            inside=self.inside if later.inside is None else later.inside,
        )


def change_of(move: Move) -> EntryChange:
    """What one move does to its entry."""
    at = move.arrival
    if move.kind == "join":
        return EntryChange(first=at, since=at, left=0, changed=at, inside=True)
    if move.kind == "stay":
        return EntryChange(first=0, since=0, left=0, changed=at, inside=None)
    if move.kind == "leave":
        return EntryChange(first=0, since=0, left=at, changed=at, inside=False)
    return EntryChange(first=at, since=0, left=0, changed=at, inside=None)


def fold(moves: Iterable[Move]) -> dict[tuple[str, str, str], EntryChange]:
    """`(bucket, table, row id)` → the sum of its moves in their order."""
    changes: dict[tuple[str, str, str], EntryChange] = {}
    for move in moves:
        key = (move.bucket, move.table, move.row_id)
        change = change_of(move)
        before = changes.get(key)
        changes[key] = change if before is None else before.then(change)
    return changes
