"""Bulk changes: the part of a pulled page that is written with few statements instead of being merged row by row.

A row can be written in bulk if it has no edits (writes of the app that are not confirmed yet). In addition the page's
deltas must replace it, or be newer than every stored delta of the row. `PagePlan` says which rows these are. It is
computed from the rows' records, without a merge of values. A record is what the client stores of a row besides its
values: the stamp (hybrid logical clock and client id) of each delta, and the layout, which says which columns each
delta wrote. A row's generation is the number of the newest full pull that named it; `SOURCE_GENERATION` marks a row of
a named source (a database beside the gateway's own changes), which full pulls do not name.

`SqliteClientStore` calls it. This is a second implementation of `core.rows.apply_page`, for speed: with pages of 8,000
deltas, it applies five times as many INSERTs and eight times as many UPDATEs in a CPU second (`scripts/bench client`,
compared with a `SqliteClientStore.bulk_from` above the page's size). `tests/property/test_client_bulk_pages.py` and
`test_client_store.py` check that both give the same result.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, cast

from lakesync.client.core.store import SOURCE_GENERATION
from lakesync.client.sqlite.change_tracking import ChangeTracking, Operation
from lakesync.client.sqlite.row_groups import DeltaFields, RowGroup, RowGroups, RowPart, update_rows, write_rows
from lakesync.client.sqlite.sql_values import NotBulkWritableError, TableTypes, decode_uniform, group_by_columns
from lakesync.client.sqlite.stamps import Record, StampCodec, known_table
from lakesync.model.types import RowDelta, RowKey

_table_of, _row_id_of, _op_of = attrgetter("table"), attrgetter("row_id"), attrgetter("op")

DeltasByRow = Mapping[str, RowDelta | list[RowDelta]]
"""A page's deltas of one table, by row id: a row's only delta, or the list of its deltas in their order."""
_column_of, _value_of = attrgetter("column"), attrgetter("value")

DecodedGroup = tuple[RowGroup, list[Sequence[Any]]]
"""Rows, and the values of each of their columns, as SQLite binds them."""


class StoredRecords(NamedTuple):
    """The stored records of rows, as two lists, so that the garbage collector visits no object for each row."""

    generations: list[int | None]
    """Each row's generation (number of the full pull that named it last); None: the gateway does not have the row."""
    records: list[Record | None]
    """Each row's stamps; None: the gateway does not have the row, or it is stored with its values."""


class SingleDeltaRows(NamedTuple):
    """A page's deltas of one table, in order of row id, if no row has two."""

    deltas: Sequence[RowDelta]
    ops: AbstractSet[str]
    """The operations that occur."""
    fields: DeltaFields

    def keys(self) -> Sequence[str]:
        """Return the row ids."""
        return self.fields.row_ids

    def by_row(self) -> DeltasByRow:
        """Return the deltas by row id."""
        return dict(zip(self.fields.row_ids, self.deltas, strict=True))


def deltas_by_table(deltas: Sequence[RowDelta]) -> dict[str, Sequence[RowDelta]]:
    """Return the deltas of each table, in their order."""
    if len(tables := set(map(_table_of, deltas))) == 1:
        return {tables.pop(): deltas}
    result: dict[str, list[RowDelta]] = {}
    for delta in deltas:
        result.setdefault(delta.table, []).append(delta)
    return dict(result)


def deltas_by_row(deltas: Sequence[RowDelta]) -> DeltasByRow | SingleDeltaRows:
    """Return a table's deltas by row, in order of row id, so that neighbours in the file are written together."""
    row_ids = list(map(_row_id_of, deltas))
    if len(set(row_ids)) == len(deltas) > 1:
        in_order = itemgetter(*sorted(range(len(deltas)), key=row_ids.__getitem__))
        fields = DeltaFields.of(deltas)
        return SingleDeltaRows(in_order(deltas), set(map(_op_of, deltas)), DeltaFields(*map(in_order, fields)))
    result: dict[str, RowDelta | list[RowDelta]] = {}
    for delta in sorted(deltas, key=_row_id_of):
        earlier = result.get(delta.row_id)
        if earlier is None:
            result[delta.row_id] = delta
        elif isinstance(earlier, list):
            earlier.append(delta)
        else:
            result[delta.row_id] = [earlier, delta]
    return result


class PlannedRows:
    """Rows that are written in the same way."""

    def __init__(self) -> None:
        self.single: list[RowDelta] = []
        """The only delta of each row that has one."""
        self.fields: DeltaFields | None = None
        """The fields of `single`, if they are known already."""
        self.records: list[Record] = []
        """The stored record of each row in `single`; empty for new rows."""
        self.several: list[list[RowDelta]] = []
        """The deltas of each row that has several, from its INSERT on."""
        self.all_of_several: list[list[RowDelta]] = []
        """All deltas of the same rows, including a DELETE before the INSERT."""


class PagePlan:
    """A table's rows of a page, by the way in which they are written."""

    def __init__(self) -> None:
        self.new = PlannedRows()
        """Rows that are not known."""
        self.replaced = PlannedRows()
        """Known rows that the page inserts again, without their old values."""
        self.updated = PlannedRows()
        """Known rows with one UPDATE."""
        self.deleted: list[str] = []
        """Ids of known rows that the page deletes."""
        self.rest: list[RowDelta] = []
        """Deltas to be merged row by row."""


def plan_uniform(rows: SingleDeltaRows, stored: StoredRecords, generation: int) -> PagePlan | None:
    """Plan a page whose rows are all new, or all updated. None of them may have edits.

    Args:
        rows: the page's rows of one table.
        stored: the stored records of these rows, in the same order.
        generation: the page's generation: the number of the full pull in progress or done last, or SOURCE_GENERATION.

    Returns:
        The plan; None for any other page, which `plan_rows` plans.
    """
    generations, plan = set(stored.generations), PagePlan()
    if rows.ops == {"INSERT"} and generations == {None}:
        planned = plan.new
    elif rows.ops == {"UPDATE"} and generations == {generation} and None not in stored.records:
        planned = plan.updated
        planned.records = cast("list[Record]", stored.records)
    else:
        return None
    planned.single, planned.fields = list(rows.deltas), rows.fields
    return plan


def plan_rows(
    rows: DeltasByRow,
    stored: StoredRecords,
    edited: AbstractSet[str],
    generation: int,
) -> PagePlan:
    """Plan a page row by row.

    A DELETE is not compared with stored stamps (see `core.rows.apply_page_delta`). The gateway also sends one for a row
    that the client may no longer see, with a stamp that may be below the row's. It is never from an older page, because
    `Puller` applies pages and broadcasts in order.

    Args:
        rows: the page's deltas of one table.
        stored: the stored records of these rows, in the same order.
        edited: ids of rows that have edits.
        generation: the page's generation, as for `plan_uniform`.
    """
    plan = PagePlan()
    new, replaced, updated = plan.new, plan.replaced, plan.updated
    for (row_id, deltas), row_generation, record in zip(rows.items(), *stored, strict=True):
        is_known = row_generation is not None
        if row_id in edited or (is_known and record is None):
            plan.rest += deltas if isinstance(deltas, list) else (deltas,)
        elif isinstance(deltas, list):
            remaining = _after_last_delete(deltas)
            is_replaced = len(remaining) < len(deltas) or _is_outdated(row_generation, generation)
            if is_known and not (is_replaced and _takes_generation(row_generation, generation)):
                plan.rest += deltas  # they must be merged with the values that the row has
            elif not remaining:
                plan.deleted += [row_id] if is_known else []
            elif _creates_row(remaining):
                planned = replaced if is_known else new
                planned.several.append(remaining)
                planned.all_of_several.append(deltas)
            else:
                plan.rest += deltas
        elif record is None:  # the row is not known; a DELETE changes nothing
            if deltas.op != "DELETE":
                (new.single if deltas.op == "INSERT" else plan.rest).append(deltas)
        elif deltas.op == "UPDATE" and row_generation == generation:
            updated.single.append(deltas)
            updated.records.append(record)
        elif deltas.op == "DELETE" and _takes_generation(row_generation, generation):
            plan.deleted.append(row_id)
        elif deltas.op == "INSERT" and _is_outdated(row_generation, generation):
            replaced.single.append(deltas)
        else:
            plan.rest.append(deltas)
    return plan


def _after_last_delete(deltas: list[RowDelta]) -> list[RowDelta]:
    """Return a row's deltas after its last DELETE; all of them if there is no DELETE."""
    for index in range(len(deltas) - 1, -1, -1):
        if deltas[index].op == "DELETE":
            return deltas[index + 1 :]
    return deltas


def _creates_row(deltas: Sequence[RowDelta]) -> bool:
    """Return whether a row's deltas are an INSERT and UPDATEs."""
    return deltas[0].op == "INSERT" and all(delta.op == "UPDATE" for delta in deltas[1:])


def _is_outdated(row_generation: int | None, generation: int) -> bool:
    """Return whether the row is from an older generation, so that a page of this one replaces all of its values."""
    return SOURCE_GENERATION not in (generation, row_generation) and row_generation != generation


def _takes_generation(row_generation: int | None, generation: int) -> bool:
    """Return whether the row gets the page's generation; a named source's page leaves that of the gateway's rows."""
    return generation != SOURCE_GENERATION or row_generation == SOURCE_GENERATION


class BulkChanges:
    """Changes of rows without edits, decoded and ready to be written. Implements the core's protocol of that name."""

    def __init__(self, generation: int, types: TableTypes) -> None:
        """Start without changes.

        Args:
            generation: the number of the full pull that is running or was the last. It is stored with each row, so
                that rows which a full pull does not name can be found and deleted.
            types: the column types of all synced tables.
        """
        self.generation = generation
        self.types = types
        self.new: list[DecodedGroup] = []
        """Rows that are not known."""
        self.replaced: list[DecodedGroup] = []
        """Known rows whose values are all replaced."""
        self.updated: list[tuple[RowGroup, list[Sequence[Any]], list[Record]]] = []
        """Known rows with an UPDATE that is newer than all their deltas, and their records after it."""
        self.deleted: dict[str, list[str]] = {}
        """Row ids by table."""

    @property
    def tables(self) -> set[str]:
        """The tables with changed rows."""
        return {table for _, counts in self._write_counts() for table in counts}

    @property
    def count(self) -> int:
        """The number of changed rows."""
        groups = [group for group, _ in (*self.new, *self.replaced)] + [group for group, *_ in self.updated]
        return sum(len(group.row_ids) for group in groups) + sum(map(len, self.deleted.values()))

    @property
    def renewed_rows(self) -> set[RowKey]:
        """Known rows that get the page's generation, so that the end of a full pull does not remove them."""
        return {(group.table, row_id) for group, _ in self.replaced for row_id in group.row_ids}

    def add(
        self,
        table: str,
        rows: DeltasByRow | SingleDeltaRows,
        stored: StoredRecords,
        edited: AbstractSet[str],
        stamp_codec: StampCodec,
    ) -> list[RowDelta]:
        """Add the rows of one table that can be written in bulk.

        Args:
            table: the rows' table.
            rows: the page's rows of this table, as `deltas_by_row` returns them.
            stored: the stored records of these rows, in the same order.
            edited: ids of rows that have edits.
            stamp_codec: encodes records.

        Returns:
            The deltas of all other rows.
        """
        plan = None
        if isinstance(rows, SingleDeltaRows) and edited.isdisjoint(rows.keys()):
            plan = plan_uniform(rows, stored, self.generation)
        if plan is None:
            deltas = rows.by_row() if isinstance(rows, SingleDeltaRows) else rows
            plan = plan_rows(deltas, stored, edited, self.generation)
        if plan.deleted:
            self.deleted[table] = plan.deleted
        rest = plan.rest
        rest += _add_created(self.new, table, plan.new, self.types)
        rest += _add_created(self.replaced, table, plan.replaced, self.types)
        return rest + self._add_updated(table, plan.updated, stamp_codec)

    def write(self, db: sqlite3.Connection, stamp_codec: StampCodec, tracking: ChangeTracking) -> None:
        """Write the changes.

        Args:
            db: the app's database, in a transaction.
            stamp_codec: encodes records.
            tracking: the change tracking of this database, paused.
        """
        with tracking.without_triggers(self._write_counts()):
            for groups in (self.new, self.replaced):
                for group, columns in groups:
                    records = stamp_codec.encode_rows(group.layout, group.hlcs, group.clients)
                    replace = groups is self.replaced
                    write_rows(db, group, columns, records, self.generation, self.types, replace=replace)
            for group, columns, records in self.updated:
                update_rows(db, group, columns, records, self.generation)
            for table, row_ids in self.deleted.items():
                deleted = [(row_id,) for row_id in row_ids]
                db.executemany(f'DELETE FROM "{table}" WHERE row_id = ?', deleted)
                db.executemany(f"DELETE FROM {known_table(table)} WHERE row_id = ?", deleted)

    def _add_updated(self, table: str, rows: PlannedRows, stamp_codec: StampCodec) -> list[RowDelta]:
        """Add the UPDATEs that are newer than all stored stamps of their rows; return the other deltas."""
        try:
            groups = list(_by_layout(table, rows, self.types))
        except NotBulkWritableError:
            return rows.single
        rest: list[RowDelta] = []
        for group, deltas, records in groups:
            new_records: Sequence[Record | None] = ()  # None for an update that is not newer; an empty one never is
            if group.names:
                new_records = stamp_codec.after_updates(records, group.hlcs, group.clients, group.names)
            newer = [index for index, record in enumerate(new_records) if record is not None]
            if len(newer) < len(deltas):
                is_newer = set(newer)
                rest += [delta for index, delta in enumerate(deltas) if index not in is_newer]
            if not newer:
                continue
            selected = group if len(newer) == len(deltas) else group.select(newer)
            try:
                columns = selected.sql_columns(self.types)
            except NotBulkWritableError:
                rest += [deltas[index] for index in newer]
            else:
                self.updated.append((selected, columns, [record for record in new_records if record is not None]))
        return rest

    def _write_counts(self) -> list[tuple[Operation, dict[str, int]]]:
        """Return how many rows of which table each operation writes."""
        replaced = [group for group, _ in self.replaced]
        return [
            ("INSERT", _row_counts([*(group for group, _ in self.new), *replaced])),
            ("UPDATE", _row_counts([*(group for group, *_ in self.updated), *replaced])),
            ("DELETE", {table: len(row_ids) for table, row_ids in self.deleted.items()}),
        ]


def _add_created(groups: list[DecodedGroup], table: str, rows: PlannedRows, types: TableTypes) -> list[RowDelta]:
    """Add rows that the page creates; return the deltas of those that cannot be written in bulk."""
    created = RowGroups()
    try:
        created.add_inserts(table, rows.single, types, rows.fields)
        created.add_parts(_parts_of(rows.several))
    except NotBulkWritableError:
        return [*rows.single, *chain.from_iterable(rows.all_of_several)]
    not_writable: set[str] = set()
    for group in created:
        try:
            groups.append((group, group.sql_columns(types)))
        except NotBulkWritableError:
            not_writable |= set(group.row_ids)
    if not not_writable:
        return []
    return [delta for delta in chain(rows.single, *rows.all_of_several) if delta.row_id in not_writable]


def _parts_of(rows: Sequence[Sequence[RowDelta]]) -> Iterator[RowPart]:
    """Yield each delta of the rows as a row part: its table, row id, stamp, column names and values."""
    for deltas in rows:
        for delta in deltas:
            cells = delta.columns
            names, values = tuple(map(_column_of, cells)), list(map(_value_of, cells))
            yield delta.table, delta.row_id, delta.hlc, delta.client_id, names, values


def _by_layout(
    table: str, rows: PlannedRows, types: TableTypes
) -> Iterator[tuple[RowGroup, list[RowDelta], list[Record]]]:
    """Yield UPDATEs of the same columns of rows of the same layout, whose number is in a record's first four bytes.

    Raises:
        NotBulkWritableError: their columns cannot be decoded.
    """
    for group, deltas, records in _by_updated_columns(table, rows, types):
        if len({record[:4] for record in records}) == 1:
            yield group, deltas, records
            continue
        by_layout: dict[Any, list[int]] = {}
        for index, record in enumerate(records):
            by_layout.setdefault(record[:4], []).append(index)
        for indexes in by_layout.values():
            selected = [deltas[index] for index in indexes], [records[index] for index in indexes]
            yield group.select(indexes), *selected


def _by_updated_columns(
    table: str, rows: PlannedRows, types: TableTypes
) -> Iterator[tuple[RowGroup, list[RowDelta], list[Record]]]:
    """Yield UPDATEs of the same columns, with their deltas and stored records.

    Raises:
        NotBulkWritableError: their columns cannot be decoded.
    """
    if not rows.single:
        return
    decoded = decode_uniform(rows.single, types[table])
    if decoded is not None:
        fields = rows.fields or DeltaFields.of(rows.single)
        yield RowGroup.from_decoded(table, fields, decoded), rows.single, rows.records
        return
    for names, indexes, values in group_by_columns(rows.single):
        group = RowGroup(table, (names,))
        deltas, records = [rows.single[index] for index in indexes], [rows.records[index] for index in indexes]
        group.add_rows(DeltaFields.of(deltas), values)
        yield group, deltas, records


def _row_counts(groups: Sequence[RowGroup]) -> dict[str, int]:
    """Return the number of rows by table."""
    counts: dict[str, int] = {}
    for group in groups:
        counts[group.table] = counts.get(group.table, 0) + len(group.row_ids)
    return counts
