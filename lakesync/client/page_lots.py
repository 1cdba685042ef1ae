"""The rows of a page, told apart by what is to be done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter, itemgetter
from typing import NamedTuple, cast

from lakesync.client.core.records import UNSWEPT
from lakesync.client.groups import Fields
from lakesync.client.stamps import Record
from lakesync.model.types import RowDelta

_table_of, _row_id_of, _op_of = attrgetter("table"), attrgetter("row_id"), attrgetter("op")

Said = Mapping[str, RowDelta | list[RowDelta]]
"""What a page says of a table's rows, by row id: a row's one delta, or its several deltas in their order."""


class Kept(NamedTuple):
    """What is kept of rows, one after the other, in two lists: the collector then looks at none of the values."""

    generations: list[int | None]
    """None: the row is not known."""
    records: list[Record | None]
    """None: it is not known, or kept whole."""


class Alone(NamedTuple):
    """A table's deltas, each of another row, in order of row id."""

    deltas: Sequence[RowDelta]
    ops: AbstractSet[str]
    """Of all of them."""
    fields: Fields

    def keys(self) -> Sequence[str]:
        """The row ids."""
        return self.fields.row_ids

    def by_row(self) -> Said:
        """The same by row id."""
        return dict(zip(self.fields.row_ids, self.deltas, strict=True))


def by_table(deltas: Sequence[RowDelta]) -> dict[str, Sequence[RowDelta]]:
    """The deltas of each table, in their order."""
    if len(tables := set(map(_table_of, deltas))) == 1:
        return {tables.pop(): deltas}
    found: dict[str, list[RowDelta]] = {}
    for delta in deltas:
        found.setdefault(delta.table, []).append(delta)
    return dict(found)


def by_row(said: Sequence[RowDelta]) -> Said | Alone:
    """A table's deltas by row, in order of row id: neighbours share pages of the file."""
    row_ids = list(map(_row_id_of, said))
    if len(set(row_ids)) == len(said) > 1:
        chosen = itemgetter(*sorted(range(len(said)), key=row_ids.__getitem__))
        fields = Fields.of(said)
        return Alone(chosen(said), set(map(_op_of, said)), Fields(*map(chosen, fields)))
    found: dict[str, RowDelta | list[RowDelta]] = {}
    for delta in sorted(said, key=_row_id_of):
        before = found.get(delta.row_id)
        if before is None:
            found[delta.row_id] = delta
        elif isinstance(before, list):
            before.append(delta)
        else:
            found[delta.row_id] = [before, delta]
    return found


class Rows:
    """Rows of one lot."""

    def __init__(self) -> None:
        self.lone: list[RowDelta] = []
        """Rows of which there is one delta."""
        self.fields: Fields | None = None
        """Theirs, where these are at hand."""
        self.records: list[Record] = []
        """What is kept of each of them, where it is known."""
        self.several: list[list[RowDelta]] = []
        """The deltas of each other row, from the INSERT on that makes it."""
        self.said: list[list[RowDelta]] = []
        """All that the page says of it, a DELETE before that among it."""


class Lots:
    """A table's rows of a page, by what is to be done with them."""

    def __init__(self) -> None:
        self.new, self.instead, self.updates = Rows(), Rows(), Rows()
        self.gone: list[str] = []
        self.rest: list[RowDelta] = []


def alike(rows: Alone, kept: Kept, generation: int) -> Lots | None:
    """Of rows without edits: the one lot that all of them are in, where that is seen without looking at each."""
    times, lots = set(kept.generations), Lots()
    if rows.ops == {"INSERT"} and times == {None}:
        lot = lots.new
    elif rows.ops == {"UPDATE"} and times == {generation} and None not in kept.records:
        lot = lots.updates
        lot.records = cast("list[Record]", kept.records)
    else:
        return None
    lot.lone, lot.fields = list(rows.deltas), rows.fields
    return lots


def apart(
    rows: Said,
    kept: Kept,
    edited: AbstractSet[str],
    generation: int,
) -> Lots:
    """Each row, looked at."""
    lots = Lots()
    new, instead, updates = lots.new, lots.instead, lots.updates
    for (row_id, said), time, record in zip(rows.items(), *kept, strict=True):
        if row_id in edited or (time is not None and record is None):
            lots.rest += said if isinstance(said, list) else (said,)
        elif isinstance(said, list):
            left = _after_delete(said)
            of_another_time = len(left) < len(said) or _passed(time, generation)
            if time is not None and not (of_another_time and _takes_generation(time, generation)):
                lots.rest += said
            elif not left:
                lots.gone += [row_id] if time is not None else []
            elif _makes(left):
                made = new if time is None else instead
                made.several.append(left)
                made.said.append(said)
            else:
                lots.rest += said
        elif record is None:
            if said.op != "DELETE":
                (new.lone if said.op == "INSERT" else lots.rest).append(said)
        elif said.op == "UPDATE" and time == generation:
            updates.lone.append(said)
            updates.records.append(record)
        elif said.op == "DELETE" and _takes_generation(time, generation):
            lots.gone.append(row_id)
        elif said.op == "INSERT" and _passed(time, generation):
            instead.lone.append(said)
        else:
            lots.rest.append(said)
    return lots


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
