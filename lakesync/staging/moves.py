"""Moves folded into one change a feed entry, so that one statement writes a whole push."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from lakesync.model.types import RowKey
from lakesync.staging.hot_rows import HotRow
from lakesync.staging.records import Move, MoveKind

Stays = Mapping[str, int]
"""Bucket key → the newest of the moves in it that rows tell of themselves (`HotRow.born` and `stayed`)."""


class EntryChange(msgspec.Struct, frozen=True, gc=False):
    """What a commit does to one entry. A 0 leaves the stored arrival as it is; `first` only ever fills a 0."""

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

    def stayed(self, at: int) -> EntryChange:
        """This, and a `stay` move at the arrival `at`."""
        return EntryChange(self.first, self.since, self.left, at, self.inside)


def changed_by(before: EntryChange | None, kind: MoveKind, at: int) -> EntryChange:
    """The sum of a change and a move at the arrival `at` after it."""
    if kind == "stay":
        return stayed(at) if before is None else before.stayed(at)
    if kind == "join":
        change = joined(at)
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
    add_told(changes, rows.items())
    return changes


def add_told(changes: dict[tuple[str, str, str], EntryChange], rows: Iterable[tuple[RowKey, HotRow]]) -> None:
    """Add the moves that rows tell of themselves: a `join` before all others, a `stay` where it is the latest."""
    for (table, row_id), row in rows:
        born, at = row.born, row.stayed
        if born == at == 0:
            continue
        for bucket in row.keys:
            change = changes.get((bucket, table, row_id))
            if born:
                change = joined(born) if change is None else joined(born).then(change)
            if change is None:
                change = stayed(at)
            elif change.changed < at:
                change = change.stayed(at)
            changes[bucket, table, row_id] = change


def told_at_birth(row: HotRow, key: RowKey) -> list[Move]:
    """The `join` moves that a row tells of itself, to be told otherwise from here on."""
    return [Move(bucket, *key, row.born, "join") for bucket in row.keys] if row.born else []


def joined(at: int) -> EntryChange:
    """A `join` move at the arrival `at`."""
    return EntryChange(at, at, 0, at, True)


def stayed(at: int) -> EntryChange:
    """A `stay` move at the arrival `at`."""
    return EntryChange(0, 0, 0, at, None)


def buckets_of(moves: Iterable[Move], stays: Iterable[str] = ()) -> set[str]:
    """The bucket keys in which anything moved."""
    return {move.bucket for move in moves}.union(stays)
