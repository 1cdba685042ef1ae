"""A page, cut into what can be written at once and what is merged row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lakesync.client import bulk
from lakesync.client.bulk import Group, Groups, MisfitError, Part, Types
from lakesync.client.core.records import UNSWEPT
from lakesync.types import RowDelta, RowKey

_Stamps = tuple[list[tuple[int, str, list[str]]], Any, Any]
_decode_stamps = msgspec.json.Decoder(_Stamps).decode
_encode = msgspec.json.Encoder().encode
_Written = tuple[Group, Sequence[Sequence[Any]]]


class BulkChanges:
    """Changes of settled rows, ready to be written."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.inserts: list[_Written] = []
        self.updates: list[_Written] = []
        self.deletes: dict[str, list[str]] = {}

    @property
    def tables(self) -> set[str]:
        """Of which rows change."""
        return {group.table for group, _ in self.inserts + self.updates} | self.deletes.keys()

    @property
    def count(self) -> int:
        """How many rows change."""
        written = sum(len(group.row_ids) for group, _ in self.inserts + self.updates)
        return written + sum(map(len, self.deletes.values()))

    def write(self, db: sqlite3.Connection) -> None:
        """Write them, in the transaction that is open."""
        for group, columns in self.inserts:
            bulk.insert(db, group, columns, self.generation)
        for group, columns in self.updates:
            bulk.update(db, group, columns)
        for table, row_ids in self.deletes.items():
            db.executemany(f'DELETE FROM "{table}" WHERE row_id = ?', [(row_id,) for row_id in row_ids])
            gone = [(table, row_id) for row_id in row_ids]
            db.executemany("DELETE FROM _lakesync_known WHERE tbl = ? AND row_id = ?", gone)


class Settled(NamedTuple):
    """What is kept of a row without edits."""

    generation: int
    stamps: bytes


def cut(
    deltas: Collection[RowDelta],
    generation: int,
    types: Types,
    settled: Mapping[RowKey, Settled],
    unsettled: set[RowKey],
) -> tuple[BulkChanges, list[RowDelta]]:
    """What can be written at once, and the deltas of all other rows.

    Args:
        settled: what is kept of the page's rows that are settled.
        unsettled: those of its rows that have edits, or are known in another way.
    """
    by_row = _by_row(deltas)
    changes = BulkChanges(generation)
    rest: list[RowKey] = []
    new: list[Sequence[RowDelta]] = []
    merged: dict[tuple[str, tuple[str, ...]], Group] = {}
    for key, said in by_row.items():
        row = settled.get(key)
        if key in unsettled or key[0] not in types:
            rest.append(key)
        elif row is None:
            left = _after_delete(said)
            if not left:
                continue
            if left[0].op == "INSERT" and all(delta.op == "UPDATE" for delta in left[1:]):
                new.append(left)
            else:
                rest.append(key)
        elif said[-1].op == "DELETE" and generation != UNSWEPT:
            changes.deletes.setdefault(key[0], []).append(key[1])
        elif row.generation != generation or not _merge(merged, key, said, row.stamps):
            rest.append(key)
    rest += _insert(changes, new, types)
    for group in merged.values():
        try:
            changes.updates.append((group, group.columns(types)))
        except MisfitError:
            rest += [(group.table, row_id) for row_id in group.row_ids]
    return changes, [delta for key in rest for delta in by_row[key]]


def _by_row(deltas: Collection[RowDelta]) -> dict[RowKey, Sequence[RowDelta]]:
    single: dict[RowKey, Sequence[RowDelta]] = {(delta.table, delta.row_id): (delta,) for delta in deltas}
    if len(single) == len(deltas):
        return single
    several: dict[RowKey, list[RowDelta]] = {}
    for delta in deltas:
        several.setdefault((delta.table, delta.row_id), []).append(delta)
    return {**several}


def _insert(changes: BulkChanges, rows: list[Sequence[RowDelta]], types: Types) -> list[RowKey]:
    """Add new rows; those that do not fit."""
    groups = Groups()
    try:
        groups.add(_parts(rows))
    except MisfitError:
        return [said[0].key for said in rows]
    rest: list[RowKey] = []
    for group in groups:
        try:
            changes.inserts.append((group, group.columns(types)))
        except MisfitError:
            rest += [(group.table, row_id) for row_id in group.row_ids]
    return rest


def _parts(rows: list[Sequence[RowDelta]]) -> Iterator[Part]:
    for said in rows:
        for delta in said:
            cells = delta.columns
            names = tuple([cell.column for cell in cells])
            yield delta.table, delta.row_id, delta.hlc, delta.client_id, names, [cell.value for cell in cells]


def _after_delete(said: Sequence[RowDelta]) -> Sequence[RowDelta]:
    for place in range(len(said) - 1, -1, -1):
        if said[place].op == "DELETE":
            return said[place + 1 :]
    return said


def _merge(
    merged: dict[tuple[str, tuple[str, ...]], Group], key: RowKey, said: Sequence[RowDelta], stamps: bytes
) -> bool:
    """Add an UPDATE that is newer than all that its row has; whether it is such a one."""
    (delta, *others) = said
    if others or delta.op != "UPDATE" or not delta.columns:
        return False
    parts, tombstone, inserted = _decode_stamps(stamps)
    stamp = (delta.hlc, delta.client_id)
    if tombstone is not None or (parts and stamp <= (parts[-1][0], parts[-1][1])):
        return False
    names = tuple([cell.column for cell in delta.columns])
    kept: list[tuple[int, str, Sequence[str]]] = []
    for part in parts:
        left = [name for name in part[2] if name not in names]
        if left:
            kept.append((part[0], part[1], left))
    kept.append((*stamp, names))
    group = merged.get((key[0], names))
    if group is None:
        group = merged[key[0], names] = Group(key[0], names)
    group.row_ids.append(key[1])
    group.values.append([cell.value for cell in delta.columns])
    group.stamps.append(_encode((kept, None, inserted)).decode())
    return True
