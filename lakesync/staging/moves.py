"""Moves folded into one change a feed entry, so that one statement writes a whole push."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lakesync.staging.records import Move, MoveKind


class EntryChange(msgspec.Struct, frozen=True, gc=False):
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


def changed_by(before: EntryChange | None, kind: MoveKind, at: int) -> EntryChange:
    """The sum of a change and a move at the arrival `at` after it."""
    if kind == "stay":
        if before is not None:
            return EntryChange(before.first, before.since, before.left, at, before.inside)
        change = EntryChange(0, 0, 0, at, None)
    elif kind == "join":
        change = EntryChange(at, at, 0, at, True)
    elif kind == "leave":
        change = EntryChange(0, 0, at, at, False)
    else:
        change = EntryChange(at, 0, 0, at, None)
    return change if before is None else before.then(change)


def fold(moves: Iterable[Move]) -> dict[tuple[str, str, str], EntryChange]:
    """`(bucket, table, row id)` → the sum of its moves in their order."""
    changes: dict[tuple[str, str, str], EntryChange] = {}
    for move in moves:
        key = (move.bucket, move.table, move.row_id)
        changes[key] = changed_by(changes.get(key), move.kind, move.arrival)
    return changes
