"""Decides how each row of a pulled page is written: in bulk, with few statements, or merged with what is stored.

A page is a set of deltas (changes of rows) of other clients. The client's store splits it with `deltas_by_table` and
`deltas_by_row`, and reads what is stored of its rows. Then `BulkChanges` calls `plan_page` for each table. A row can be
written in bulk if it has no edits, which are changes of the app that the gateway has not acknowledged, and if the
page's deltas replace it, or are newer than all of its stored deltas. The plan is made from the rows' *records*, without
their values. A record is what the client stores of a row besides its values: the stamp (hlc and client id) of each
delta that wrote it. A row's *generation* is the number of the newest full pull (all pages from the beginning) that
named the row; `SOURCE_GENERATION` marks a row of a named source (a database beside the gateway's own changes), which
full pulls do not name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter, itemgetter
from typing import NamedTuple, cast

from lakesync.client.core.store import SOURCE_GENERATION
from lakesync.client.sqlite.row_groups import RowStamps
from lakesync.client.sqlite.stamps import Record
from lakesync.model.types import RowDelta

_table_of, _row_id_of, _op_of = attrgetter("table"), attrgetter("row_id"), attrgetter("op")

DeltasByRow = Mapping[str, RowDelta | list[RowDelta]]
"""A page's deltas of one table, by row id: a row's only delta, or the list of its deltas in their order."""


class StoredRecords(NamedTuple):
    """The stored records of rows, as two lists, so that the garbage collector visits no object for each row."""

    generations: list[int | None]
    """Each row's generation (number of the full pull that named it last); None: the gateway does not have the row."""
    records: list[Record | None]
    """Each row's stamps; None: the gateway does not have the row (generation None), or it is stored with its values."""


class SingleDeltaRows(NamedTuple):
    """A page's deltas of one table, in order of row id, if no row has two. It can be planned without a loop."""

    deltas: Sequence[RowDelta]
    ops: AbstractSet[str]
    """The operations that occur: INSERT, UPDATE, DELETE."""
    stamps: RowStamps
    """The row ids, hlcs and client ids of the deltas."""

    def keys(self) -> Sequence[str]:
        """Return the row ids."""
        return self.stamps.row_ids

    def by_row(self) -> DeltasByRow:
        """Return the deltas by row id."""
        return dict(zip(self.stamps.row_ids, self.deltas, strict=True))


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
    if len(set(row_ids)) == len(deltas) > 1:  # `itemgetter` of one index would return no tuple
        in_order = itemgetter(*sorted(range(len(deltas)), key=row_ids.__getitem__))
        stamps = RowStamps.of(deltas)
        return SingleDeltaRows(in_order(deltas), set(map(_op_of, deltas)), RowStamps(*map(in_order, stamps)))
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
        self.stamps: RowStamps | None = None
        """The stamps of `single`, if they are known already."""
        self.records: list[Record] = []
        """The stored record of each row in `single`; only for `PagePlan.updated`."""
        self.several: list[list[RowDelta]] = []
        """The deltas of each row that has several, from its INSERT on."""
        self.all_of_several: list[list[RowDelta]] = []
        """All deltas of the same rows, with a DELETE before the INSERT, for rows that cannot be written in bulk."""


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


def plan_page(
    rows: DeltasByRow | SingleDeltaRows, stored: StoredRecords, edited: AbstractSet[str], generation: int
) -> PagePlan:
    """Decide how a page's rows of one table are written.

    Args:
        rows: the page's deltas of the table, as `deltas_by_row` returns them.
        stored: the stored records of these rows, in the same order.
        edited: ids of rows that have edits.
        generation: the generation that the page's rows get: the number of the full pull in progress or done last, or
            SOURCE_GENERATION for a page of a named source.
    """
    if isinstance(rows, SingleDeltaRows):
        plan = _plan_uniform(rows, stored, generation) if edited.isdisjoint(rows.keys()) else None
        if plan is not None:
            return plan
        rows = rows.by_row()
    return _plan_each_row(rows, stored, edited, generation)


def _plan_uniform(rows: SingleDeltaRows, stored: StoredRecords, generation: int) -> PagePlan | None:
    """Return the plan of a page whose rows are all new, or all updated; None for any other page."""
    generations, plan = set(stored.generations), PagePlan()
    if rows.ops == {"INSERT"} and generations == {None}:
        planned = plan.new
    elif rows.ops == {"UPDATE"} and generations == {generation} and None not in stored.records:
        planned = plan.updated
        planned.records = cast("list[Record]", stored.records)
    else:
        return None
    planned.single, planned.stamps = list(rows.deltas), rows.stamps
    return plan


def _plan_each_row(rows: DeltasByRow, stored: StoredRecords, edited: AbstractSet[str], generation: int) -> PagePlan:
    """Return the plan of any page.

    A known row without edits, whose values are not in its record, and to which the page has one delta, is updated by an
    UPDATE, deleted by a DELETE, and replaced by an INSERT if it is of an older generation. An unknown row is new with
    an INSERT. If the page has several deltas of a row, those after its last DELETE decide in the same way. All other
    deltas are merged.

    A DELETE is not compared with stored stamps (see `core.rows.apply_page_delta`). The gateway also sends one for a row
    that the client may no longer see, with a stamp that may be below the row's. It is never from an older page, because
    the client applies pages in order.
    """
    plan = PagePlan()
    new, replaced, updated = plan.new, plan.replaced, plan.updated
    for (row_id, deltas), row_generation, record in zip(rows.items(), *stored, strict=True):
        is_known = row_generation is not None
        if row_id in edited or (is_known and record is None):  # the second: it is stored with its values
            plan.rest += deltas if isinstance(deltas, list) else (deltas,)
        elif isinstance(deltas, list):  # several deltas of the row; in the branches after this one it has only one
            remaining = _after_last_delete(deltas)
            is_replaced = len(remaining) < len(deltas) or _is_outdated(row_generation, generation)
            if is_known and not (is_replaced and _takes_generation(row_generation, generation)):
                plan.rest += deltas  # they must be merged with the values that the row has
            elif not remaining:
                if is_known:
                    plan.deleted.append(row_id)
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
    """Return whether the row gets the page's generation. A gateway's row keeps its own in a page of a named source."""
    return generation != SOURCE_GENERATION or row_generation == SOURCE_GENERATION
