"""A page, cut into what can be written at once and what is merged row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import attrgetter
from typing import Any

from lakesync.client import bulk
from lakesync.client.cells import MisfitError, Types, by_columns, read_alike
from lakesync.client.groups import Fields, Group, Groups, Part
from lakesync.client.page_lots import Alone, Kept, Rows, Said, alike, apart
from lakesync.client.stamps import Names, Record, known_of
from lakesync.client.tracking import Event, Tracking
from lakesync.model.types import RowDelta, RowKey

_column_of, _value_of = attrgetter("column"), attrgetter("value")

Ready = tuple[Group, list[Sequence[Any]]]
"""Rows, and their values by column."""


class BulkChanges:
    """Changes of settled rows, ready to be written."""

    def __init__(self, generation: int, types: Types) -> None:
        self.generation = generation
        self.types = types
        self.new: list[Ready] = []
        """Rows of which nothing is known."""
        self.instead: list[Ready] = []
        """Rows of which nothing stays as it was."""
        self.updates: list[tuple[Group, list[Sequence[Any]], list[Record]]] = []
        """Rows whose UPDATE is newer than all that they have, and what is kept of them then."""
        self.deletes: dict[str, list[str]] = {}

    @property
    def tables(self) -> set[str]:
        """Of which rows change."""
        return {table for _, counts in self._counts() for table in counts}

    @property
    def count(self) -> int:
        """How many rows change."""
        groups = [group for group, _ in (*self.new, *self.instead)] + [group for group, *_ in self.updates]
        return sum(len(group.row_ids) for group in groups) + sum(map(len, self.deletes.values()))

    @property
    def brought_over(self) -> set[RowKey]:
        """Rows of older generations that have the page's from then on."""
        return {(group.table, row_id) for group, _ in self.instead for row_id in group.row_ids}

    def write(self, db: sqlite3.Connection, names: Names, tracking: Tracking) -> None:
        """Write them, in the transaction that is open, in which `tracking` is quiet."""
        with tracking.without(self._counts()):
            for ready in (self.new, self.instead):
                for group, columns in ready:
                    records = names.records(group.layout, group.hlcs, group.clients)
                    instead = ready is self.instead
                    bulk.put(db, group, columns, records, self.generation, self.types, instead=instead)
            for group, columns, records in self.updates:
                bulk.update(db, group, columns, records, self.generation)
            for table, row_ids in self.deletes.items():
                gone = [(row_id,) for row_id in row_ids]
                db.executemany(f'DELETE FROM "{table}" WHERE row_id = ?', gone)
                db.executemany(f"DELETE FROM {known_of(table)} WHERE row_id = ?", gone)

    def _counts(self) -> list[tuple[Event, dict[str, int]]]:
        """How many writes of each kind each table gets."""
        instead = [group for group, _ in self.instead]
        return [
            ("INSERT", _sizes([*(group for group, _ in self.new), *instead])),
            ("UPDATE", _sizes([*(group for group, *_ in self.updates), *instead])),
            ("DELETE", {table: len(row_ids) for table, row_ids in self.deletes.items()}),
        ]


def cut(
    changes: BulkChanges,
    table: str,
    rows: Said | Alone,
    kept: Kept,
    edited: AbstractSet[str],
    names: Names,
) -> list[RowDelta]:
    """Add what can be written at once of a table's part of a page to the changes; the deltas of all other rows.

    Args:
        rows: as `by_row` gives them; kept: of each.
        edited: ids of rows that have edits.
    """
    lots = None
    if isinstance(rows, Alone) and edited.isdisjoint(rows.keys()):
        lots = alike(rows, kept, changes.generation)
    if lots is None:
        said = rows.by_row() if isinstance(rows, Alone) else rows
        lots = apart(said, kept, edited, changes.generation)
    if lots.gone:
        changes.deletes[table] = lots.gone
    rest = lots.rest
    rest += _grouped(changes.new, table, lots.new, changes.types)
    rest += _grouped(changes.instead, table, lots.instead, changes.types)
    return rest + _updated(changes, table, lots.updates, names)


def _grouped(ready: list[Ready], table: str, rows: Rows, types: Types) -> list[RowDelta]:
    """Add rows that a page makes; the deltas of those that do not fit."""
    groups = Groups()
    try:
        groups.extend(table, rows.lone, types, rows.fields)
        groups.add(_parts(rows.several))
    except MisfitError:
        return [*rows.lone, *chain.from_iterable(rows.said)]
    misfits: set[str] = set()
    for group in groups:
        try:
            ready.append((group, group.columns(types)))
        except MisfitError:
            misfits |= set(group.row_ids)
    if not misfits:
        return []
    return [delta for delta in chain(rows.lone, *rows.said) if delta.row_id in misfits]


def _parts(rows: Sequence[Sequence[RowDelta]]) -> Iterator[Part]:
    for said in rows:
        for delta in said:
            cells = delta.columns
            names, values = tuple(map(_column_of, cells)), list(map(_value_of, cells))
            yield delta.table, delta.row_id, delta.hlc, delta.client_id, names, values


def _updated(changes: BulkChanges, table: str, rows: Rows, names: Names) -> list[RowDelta]:
    """Add UPDATEs that are newer than all that their rows have; the others."""
    try:
        lots = list(_of_one_layout(table, rows, changes.types))
    except MisfitError:
        return rows.lone
    rest: list[RowDelta] = []
    for group, deltas, records in lots:
        after = names.overwritten_all(records, group.hlcs, group.clients, group.names) if group.names else ()
        newer = [place for place, record in enumerate(after) if record is not None]
        if len(newer) < len(deltas):
            kept = set(newer)
            rest += [delta for place, delta in enumerate(deltas) if place not in kept]
        if not newer:
            continue
        chosen = group if len(newer) == len(deltas) else group.only(newer)
        try:
            values = chosen.columns(changes.types)
        except MisfitError:
            rest += [deltas[place] for place in newer]
        else:
            changes.updates.append((chosen, values, [record for record in after if record is not None]))
    return rest


def _of_one_layout(table: str, rows: Rows, types: Types) -> Iterator[tuple[Group, list[RowDelta], list[Record]]]:
    """UPDATEs of the same columns of rows whose records begin alike, for these are of one layout.

    Raises:
        MisfitError: their columns cannot be read.
    """
    for group, deltas, records in _of_one_update(table, rows, types):
        if len({record[:4] for record in records}) == 1:
            yield group, deltas, records
            continue
        by_head: dict[Any, list[int]] = {}
        for place, record in enumerate(records):
            by_head.setdefault(record[:4], []).append(place)
        for some in by_head.values():
            yield group.only(some), [deltas[place] for place in some], [records[place] for place in some]


def _of_one_update(table: str, rows: Rows, types: Types) -> Iterator[tuple[Group, list[RowDelta], list[Record]]]:
    if not rows.lone:
        return
    read = read_alike(rows.lone, types[table])
    if read is not None:
        yield Group.read(table, rows.fields or Fields.of(rows.lone), read), rows.lone, rows.records
        return
    for names, places, values in by_columns(rows.lone):
        group = Group(table, (names,))
        deltas, records = [rows.lone[place] for place in places], [rows.records[place] for place in places]
        group.extend(Fields.of(deltas), values)
        yield group, deltas, records


def _sizes(groups: Sequence[Group]) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in groups:
        found[group.table] = found.get(group.table, 0) + len(group.row_ids)
    return found
