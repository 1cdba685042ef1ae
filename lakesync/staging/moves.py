"""Moves folded into one change a feed entry, so that one statement writes a whole push."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from lakesync.staging.hot_rows import HotRow
from lakesync.staging.records import Move, MoveKind
from lakesync.types import RowKey

Stays = Mapping[str, int]
"""Bucket key → the newest of the `stay` moves in it that rows tell of themselves (`HotRow.stayed`)."""


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

    def stayed(self, at: int) -> EntryChange:
        """This, and a `stay` move at the arrival `at`."""
        return EntryChange(self.first, self.since, self.left, at, self.inside)


def changed_by(before: EntryChange | None, kind: MoveKind, at: int) -> EntryChange:
    """The sum of a change and a move at the arrival `at` after it."""
    if kind == "stay":
        return stayed(at) if before is None else before.stayed(at)
    if kind == "join":
        change = EntryChange(at, at, 0, at, True)
    elif kind == "leave":
        change = EntryChange(0, 0, at, at, False)
    else:
        change = EntryChange(at, 0, 0, at, None)
    return change if before is None else before.then(change)


def fold(moves: Iterable[Move], rows: Mapping[RowKey, HotRow]) -> dict[tuple[str, str, str], EntryChange]:
    """`(bucket, table, row id)` → the sum of its moves in their order, and what the rows tell of themselves."""
    changes: dict[tuple[str, str, str], EntryChange] = {}
    for move in moves:
        key = (move.bucket, move.table, move.row_id)
        changes[key] = changed_by(changes.get(key), move.kind, move.arrival)
    add_stays(changes, rows.items())
    return changes


def add_stays(changes: dict[tuple[str, str, str], EntryChange], rows: Iterable[tuple[RowKey, HotRow]]) -> None:
    """Add the `stay` moves that rows tell of themselves, where a row did not move later."""
    for (table, row_id), row in rows:
        at = row.stayed
        if at == 0:
            continue
        for bucket in row.keys:
            before = changes.get((bucket, table, row_id))
            if before is None:
                changes[bucket, table, row_id] = stayed(at)
            elif before.changed < at:
                changes[bucket, table, row_id] = before.stayed(at)


def stayed(at: int) -> EntryChange:
    """A `stay` move at the arrival `at`."""
    return EntryChange(0, 0, 0, at, None)


def buckets_of(moves: Iterable[Move], stays: Iterable[str] = ()) -> set[str]:
    """The bucket keys in which anything moved."""
    return {move.bucket for move in moves}.union(stays)
