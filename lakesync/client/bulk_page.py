"""A page, cut into what can be written at once and what is merged row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from lakesync.client import bulk
from lakesync.client.bulk import Group, Groups, MisfitError, Part, Types
from lakesync.client.core.records import UNSWEPT
from lakesync.client.stamps import Names, Record
from lakesync.client.tracking import Event, Tracking
from lakesync.types import RowDelta, RowKey

_table_of, _row_id_of = attrgetter("table"), attrgetter("row_id")
_column_of, _value_of = attrgetter("column"), attrgetter("value")

Ready = tuple[Group, list[Sequence[Any]]]
"""Rows, and their values by column."""


Kept = tuple[int | None, Record | None]
"""What is kept of a row: generation and record. No record where it is kept whole; neither where it is not known."""
NOTHING: Kept = (None, None)


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
        ways: list[tuple[list[Ready], Callable[..., None]]] = [(self.new, bulk.insert), (self.instead, bulk.replace)]
        with tracking.without(self._counts()):
            for ready, write in ways:
                for group, columns in ready:
                    records = names.records(group.layout, group.hlcs, group.clients)
                    write(db, group, columns, records, self.generation, self.types)
            for group, columns, records in self.updates:
                bulk.update(db, group, columns, records, self.generation)
            for table, row_ids in self.deletes.items():
                db.executemany(f'DELETE FROM "{table}" WHERE row_id = ?', [(row_id,) for row_id in row_ids])
                gone = [(table, row_id) for row_id in row_ids]
                db.executemany("DELETE FROM _lakesync_known WHERE tbl = ? AND row_id = ?", gone)

    def _counts(self) -> list[tuple[Event, dict[str, int]]]:
        """How many writes of each kind each table gets."""
        instead = [group for group, _ in self.instead]
        return [
            ("INSERT", _sizes([*(group for group, _ in self.new), *instead])),
            ("UPDATE", _sizes([*(group for group, *_ in self.updates), *instead])),
            ("DELETE", {table: len(row_ids) for table, row_ids in self.deletes.items()}),
        ]


def in_order(deltas: Collection[RowDelta]) -> dict[str, list[RowDelta]]:
    """The deltas of each table by row id, those of a row in their order: neighbours share pages of the file."""
    if len(tables := set(map(_table_of, deltas))) == 1:
        return {tables.pop(): sorted(deltas, key=_row_id_of)}
    found: dict[str, list[RowDelta]] = {}
    for delta in sorted(deltas, key=_row_id_of):
        found.setdefault(delta.table, []).append(delta)
    return found


def cut(
    changes: BulkChanges,
    table: str,
    rows: Mapping[str, RowDelta | list[RowDelta]],
    kept: Sequence[Kept],
    edited: Collection[str],
    names: Names,
) -> list[RowDelta]:
    """Add what can be written at once of a table's part of a page to the changes; the deltas of all other rows.

    Args:
        rows: by row id, as `by_row` gives them; kept: of each.
        edited: ids of rows that have edits.
    """
    generation = changes.generation
    rest: list[RowDelta] = []
    new, instead, updates = _Rows(), _Rows(), _Rows()
    gone: list[str] = []
    for (row_id, said), (time, record) in zip(rows.items(), kept, strict=True):
        if row_id in edited or (time is not None and record is None):
            rest += said if isinstance(said, list) else (said,)
        elif isinstance(said, list):
            left = _after_delete(said)
            of_another_time = len(left) < len(said) or _passed(time, generation)
            if time is not None and not (of_another_time and _takes_generation(time, generation)):
                rest += said
            elif not left:
                gone += [row_id] if time is not None else []
            elif _makes(left):
                made = new if time is None else instead
                made.several.append(left)
                made.said.append(said)
            else:
                rest += said
        elif record is None:
            if said.op != "DELETE":
                (new.lone if said.op == "INSERT" else rest).append(said)
        elif said.op == "UPDATE" and time == generation and said.columns:
            updates.lone.append(said)
            updates.records.append(record)
        elif said.op == "DELETE" and _takes_generation(time, generation):
            gone.append(row_id)
        elif said.op == "INSERT" and _passed(time, generation):
            instead.lone.append(said)
        else:
            rest.append(said)
    if gone:
        changes.deletes[table] = gone
    rest += _grouped(changes.new, table, new, changes.types)
    rest += _grouped(changes.instead, table, instead, changes.types)
    return rest + _updated(changes, table, updates, names)


class _Rows:
    """Rows of one lot."""

    def __init__(self) -> None:
        self.lone: list[RowDelta] = []
        """Rows of which there is one delta."""
        self.records: list[Record] = []
        """What is kept of each of them, where it is known."""
        self.several: list[list[RowDelta]] = []
        """The deltas of each other row, from the INSERT on that makes it."""
        self.said: list[list[RowDelta]] = []
        """All that the page says of it, a DELETE before that among it."""


def by_row(said: Sequence[RowDelta]) -> Mapping[str, RowDelta | list[RowDelta]]:
    """By row id: a row's one delta, or its several deltas in their order."""
    single = dict(zip(map(_row_id_of, said), said, strict=True))
    if len(single) == len(said):
        return single
    found: dict[str, RowDelta | list[RowDelta]] = {}
    for delta in said:
        before = found.get(delta.row_id)
        if before is None:
            found[delta.row_id] = delta
        elif isinstance(before, list):
            before.append(delta)
        else:
            found[delta.row_id] = [before, delta]
    return found


def _after_delete(run: list[RowDelta]) -> list[RowDelta]:
    for place in range(len(run) - 1, -1, -1):
        if run[place].op == "DELETE":
            return run[place + 1 :]
    return run


def _makes(said: Sequence[RowDelta]) -> bool:
    """Whether deltas make a row, rather than add to one."""
    return said[0].op == "INSERT" and all(delta.op == "UPDATE" for delta in said[1:])


def _passed(time: int | None, generation: int) -> bool:
    """Whether what a row of this generation holds counts no more, now that a page names it."""
    return UNSWEPT not in (generation, time) and time != generation


def _takes_generation(time: int | None, generation: int) -> bool:
    """Whether a row has the page's generation then: one of a named source leaves the gateway's own rows theirs."""
    return generation != UNSWEPT or time == UNSWEPT


def _grouped(ready: list[Ready], table: str, rows: _Rows, types: Types) -> list[RowDelta]:
    """Add rows that a page makes; the deltas of those that do not fit."""
    groups = Groups()
    for names, deltas in _by_columns(rows.lone).items():
        groups.extend(table, names, deltas)
    try:
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


def _by_columns(deltas: Sequence[RowDelta]) -> dict[tuple[str, ...], list[RowDelta]]:
    found: dict[tuple[str, ...], list[RowDelta]] = {}
    for delta in deltas:
        found.setdefault(tuple(map(_column_of, delta.columns)), []).append(delta)
    return found


def _parts(rows: Sequence[Sequence[RowDelta]]) -> Iterator[Part]:
    for said in rows:
        for delta in said:
            cells = delta.columns
            names, values = tuple(map(_column_of, cells)), list(map(_value_of, cells))
            yield delta.table, delta.row_id, delta.hlc, delta.client_id, names, values


def _updated(changes: BulkChanges, table: str, rows: _Rows, names: Names) -> list[RowDelta]:
    """Add UPDATEs that are newer than all that their rows have; the others."""
    rest: list[RowDelta] = []
    for columns, deltas, records in _alike(rows):
        group, newer = _group(table, columns, deltas), deltas
        after = names.overwritten_all(records, group.hlcs, group.clients, columns)
        if None in after:
            told = list(zip(deltas, after, strict=True))
            rest += [delta for delta, record in told if record is None]
            newer = [delta for delta, record in told if record is not None]
            group = _group(table, columns, newer)
        try:
            values = group.columns(changes.types)
        except MisfitError:
            rest += newer
        else:
            changes.updates.append((group, values, [record for record in after if record is not None]))
    return rest


def _group(table: str, columns: tuple[str, ...], deltas: Sequence[RowDelta]) -> Group:
    group = Group(table, (columns,))
    group.extend(deltas)
    return group


def _alike(rows: _Rows) -> Iterator[tuple[tuple[str, ...], list[RowDelta], list[Record]]]:
    """UPDATEs of the same columns of rows whose records begin alike, for these are of one layout."""
    if not rows.lone:
        return
    names = [tuple(map(_column_of, delta.columns)) for delta in rows.lone]
    heads = [record[:4] for record in rows.records]
    if len(set(names)) == len(set(heads)) == 1:
        yield names[0], rows.lone, rows.records
        return
    found: dict[Any, tuple[tuple[str, ...], list[RowDelta], list[Record]]] = {}
    for key, delta, record in zip(zip(names, heads, strict=True), rows.lone, rows.records, strict=True):
        _, deltas, records = found.setdefault(key, (key[0], [], []))
        deltas.append(delta)
        records.append(record)
    yield from found.values()


def _sizes(groups: Sequence[Group]) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in groups:
        found[group.table] = found.get(group.table, 0) + len(group.row_ids)
    return found
