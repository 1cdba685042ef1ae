"""A page, cut into what can be written at once and what is merged row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from lakesync.client import bulk
from lakesync.client.bulk import Group, Groups, MisfitError, Part, Types
from lakesync.client.core.records import UNSWEPT
from lakesync.client.stamps import Names, Record
from lakesync.client.tracking import Event, Tracking
from lakesync.types import ColumnValue, RowDelta, RowKey

_column_of = attrgetter("column")
_value_of = attrgetter("value")


class Settled(NamedTuple):
    """What is kept of a row without edits."""

    generation: int
    record: Record


class Overwritten:
    """Rows of one table whose UPDATE of the same columns is newer than all that they have."""

    def __init__(self, table: str, names: tuple[str, ...]) -> None:
        self.group = Group(table, (names,))
        self.records: list[Record] = []
        """What is kept of each, once it is written."""


class BulkChanges:
    """Changes of settled rows, ready to be written."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.inserts: list[tuple[Group, list[Sequence[Any]]]] = []
        self.updates: list[tuple[Overwritten, list[Sequence[Any]]]] = []
        self.deletes: dict[str, list[str]] = {}

    @property
    def tables(self) -> set[str]:
        """Of which rows change."""
        return self._inserted.keys() | self._updated.keys() | self.deletes.keys()

    @property
    def count(self) -> int:
        """How many rows change."""
        return sum(self._inserted.values()) + sum(self._updated.values()) + sum(map(len, self.deletes.values()))

    def write(self, db: sqlite3.Connection, names: Names, tracking: Tracking) -> None:
        """Write them, in the transaction that is open, in which `tracking` is quiet."""
        deleted = {table: len(row_ids) for table, row_ids in self.deletes.items()}
        events: list[tuple[Event, dict[str, int]]] = [
            ("INSERT", self._inserted),
            ("UPDATE", self._updated),
            ("DELETE", deleted),
        ]
        with tracking.without(events):
            for group, columns in self.inserts:
                records = names.records(group.layout, group.hlcs, group.clients)
                bulk.insert(db, group, columns, records, self.generation)
            for rows, columns in self.updates:
                bulk.update(db, rows.group, columns, rows.records)
            for table, row_ids in self.deletes.items():
                db.executemany(f'DELETE FROM "{table}" WHERE row_id = ?', [(row_id,) for row_id in row_ids])
                gone = [(table, row_id) for row_id in row_ids]
                db.executemany("DELETE FROM _lakesync_known WHERE tbl = ? AND row_id = ?", gone)

    @property
    def _inserted(self) -> dict[str, int]:
        return _counts(group for group, _ in self.inserts)

    @property
    def _updated(self) -> dict[str, int]:
        return _counts(rows.group for rows, _ in self.updates)


def cut(
    by_row: Mapping[RowKey, Sequence[RowDelta]],
    generation: int,
    types: Types,
    settled: Mapping[RowKey, Settled],
    unsettled: Collection[RowKey],
    names: Names,
) -> tuple[BulkChanges, list[RowDelta]]:
    """What can be written at once, and the deltas of all other rows.

    Args:
        settled: what is kept of the page's rows that are settled.
        unsettled: those of its rows that have edits, or are known in another way.
    """
    changes = BulkChanges(generation)
    rest: list[RowKey] = []
    new: list[Sequence[RowDelta]] = []
    merged: dict[tuple[str, tuple[str, ...]], Overwritten] = {}
    for key, said in by_row.items():
        row = settled.get(key)
        if key in unsettled or key[0] not in types:
            rest.append(key)
        elif row is None:
            left = said if len(said) == 1 and said[0].op == "INSERT" else _after_delete(said)
            if not left:
                continue
            if left[0].op == "INSERT" and (len(left) == 1 or all(delta.op == "UPDATE" for delta in left[1:])):
                new.append(left)
            else:
                rest.append(key)
        elif said[-1].op == "DELETE" and generation != UNSWEPT:
            changes.deletes.setdefault(key[0], []).append(key[1])
        elif row.generation != generation or not _merge(merged, said, row.record, names):
            rest.append(key)
    rest += _insert(changes, new, types)
    for rows in merged.values():
        try:
            changes.updates.append((rows, rows.group.columns(types)))
        except MisfitError:
            rest += [(rows.group.table, row_id) for row_id in rows.group.row_ids]
    return changes, [delta for key in rest for delta in by_row[key]]


def by_row(deltas: Collection[RowDelta]) -> Mapping[RowKey, Sequence[RowDelta]]:
    """The deltas of each row, in their order."""
    single = {(delta.table, delta.row_id): (delta,) for delta in deltas}
    if len(single) == len(deltas):
        return single
    several: dict[RowKey, list[RowDelta]] = {}
    for delta in deltas:
        several.setdefault((delta.table, delta.row_id), []).append(delta)
    return several


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
            yield delta.table, delta.row_id, delta.hlc, delta.client_id, _names(cells), list(map(_value_of, cells))


def _names(cells: Sequence[ColumnValue]) -> tuple[str, ...]:
    return tuple(map(_column_of, cells))


def _after_delete(said: Sequence[RowDelta]) -> Sequence[RowDelta]:
    for place in range(len(said) - 1, -1, -1):
        if said[place].op == "DELETE":
            return said[place + 1 :]
    return said


def _merge(
    merged: dict[tuple[str, tuple[str, ...]], Overwritten], said: Sequence[RowDelta], record: Record, names: Names
) -> bool:
    """Add an UPDATE that is newer than all that its row has; whether it is such a one."""
    delta = said[0]
    if len(said) > 1 or delta.op != "UPDATE" or not delta.columns:
        return False
    columns = _names(delta.columns)
    after = names.overwritten(record, delta.hlc, delta.client_id, columns)
    if after is None:
        return False
    rows = merged.get((delta.table, columns))
    if rows is None:
        rows = merged[delta.table, columns] = Overwritten(delta.table, columns)
    rows.group.row_ids.append(delta.row_id)
    rows.group.values += map(_value_of, delta.columns)
    rows.records.append(after)
    return True


def _counts(groups: Iterator[Group]) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in groups:
        found[group.table] = found.get(group.table, 0) + len(group.row_ids)
    return found
