"""Flows: what reaches one place goes on to another, incrementally, as far as its rows meet a filter.

A filter looks at rows, not at deltas. A row that comes to meet it goes over with all of its deltas; one that met it
once goes on to be followed, and is hidden in the table of rows while it does not. A place orders deltas by arrival
within each gateway, so what a gateway wrote late is found by looking back, which costs reading and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import chosen, held_in_table, spelled
from lakesync.adapters.base import NOTHING_BESIDE, Beside, DatabaseAdapter, DeltaQuery, Mark, Marked, Position
from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.following import OlderRows, by_day
from lakesync.adapters.objects import ObjectDeltas
from lakesync.adapters.progress import progress_in
from lakesync.adapters.several import read_arrow, walk
from lakesync.config.backends import Condition
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ConfigurationError, IntegrityError
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema
from lakesync.rules.evaluation import holds, text_of_raw

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = 10_000
LOOK_BACK_MS = 3_600_000
"""How much later than another gateway's newest deltas one gateway's may be written to a place."""
_ROWS_AT_ONCE = 500
_ID = ("gateway", "client_id", "delta_id")


class Sieve(msgspec.Struct, frozen=True):
    """What goes over; every condition must hold."""

    tables: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    where: tuple[tuple[str, str, str], ...] = ()
    """`(column, operator, value)` of a row's state."""

    @classmethod
    def of(cls, conditions: Sequence[Condition], **choice: tuple[str, ...]) -> Sieve:
        """From a declaration's conditions."""
        return cls(where=tuple((each.column, each.op, each.value) for each in conditions), **choice)

    def meets(self, state: RowState) -> bool:
        """Whether a row is one that goes over."""
        values = state.values()
        return state.visible and all(
            column in values and holds(op, text_of_raw(values[column]), (value,))  # type: ignore[arg-type]
            for column, op, value in self.where
        )

    def chosen(self, deltas: pa.Table) -> pa.Table:
        """Deltas of its tables and gateways."""
        return chosen(deltas, self.tables, self.without, self.gateways)


class FlowMark(msgspec.Struct, frozen=True):
    """How far a flow is."""

    sieve: Sieve
    position: Position | None = None
    deltas: int = 0
    """That went over, those that were looked back at again included."""


class Flowed(msgspec.Struct, frozen=True):
    """A page that was dealt with."""

    looked_at: int
    deltas: int
    """That went over."""
    mark: FlowMark
    days: dict[str, int] = {}
    """UTC day of arrival → these deltas."""
    is_replay: bool = False
    """Whether they are of days that were chosen, and not new."""


class Filtered:
    """`Beside` of a flow: rows that do not meet its filter are hidden."""

    def __init__(self, sieve: Sieve, beside: Beside = NOTHING_BESIDE) -> None:
        """Args: sieve: of the flow; beside: what else its target's rows are made of."""
        self._sieve = sieve
        self._beside = beside

    def shown(
        self, schema: TableSchema, rows: Sequence[RowId], contents: Mapping[RowId, RowContent]
    ) -> Mapping[RowId, RowContent]:
        """The whole contents, those of visible rows that do not meet the filter as hidden ones."""
        whole = self._beside.shown(schema, rows, contents)
        return {
            row: replace(content, is_hidden=True)
            if content.state.visible and not self._sieve.meets(content.state)
            else content
            for row, content in whole.items()
        }


def flow_to(
    source: DatabaseAdapter,
    target: DatabaseAdapter,
    name: str,
    sieve: Sieve,
    schemas: Sequence[TableSchema] = (),
    page: int = PAGE,
    cold: Sequence[DatabaseAdapter] = (),
    until: int | None = None,
) -> Iterator[Flowed]:
    """Carry over what reached the source since the flow's mark, which is at the target and moves with each page.

    Args:
        source: where from.
        target: where to.
        name: of the flow's mark.
        sieve: what goes over.
        schemas: of the tables of rows that the target keeps.
        page: deltas that are looked at at once.
        cold: where older deltas of the target's rows may be.
        until: the last arrival that is looked at; None: all.

    Raises:
        AdapterError: one of the two cannot be reached; a repeat goes on.
        IntegrityError: another run of the flow is at work, or the target holds less than it was given.
        ConfigurationError: the target keeps no marks.
    """
    marked = _marked(target)
    text = marked.mark(name)
    at = _read(text, name, sieve)
    shown = Filtered(sieve, OlderRows(cold))
    query = new_deltas(at, sieve, page, until)
    for looked_at, deltas, after in going_over(source, query, at, sieve, partial(_held_rows, (target, *cold))):
        now = replace(at, position=after or at.position, deltas=at.deltas + len(deltas))
        told = msgspec.json.encode(now).decode()
        if len(deltas):
            wanted = held_in_table(deltas)
            batch_id = f"{name.replace('/', '.')}.{wanted.deltas}-{wanted.id_sum:016x}"
            found = marked.follow_arrow(batch_id, deltas, Mark(name, text, told), schemas, shown)
            if found.deltas < wanted.deltas:
                raise IntegrityError(
                    f"flow {name!r} wrote {wanted.deltas} deltas and {found.deltas} were read back: compare both places"
                )
        elif told != text:
            marked.move_mark(Mark(name, text, told))
        crash_point("flow.after_page")
        text, at = told, now
        yield Flowed(looked_at, len(deltas), now, by_day(deltas))


def replay_to(
    source: DatabaseAdapter,
    target: DatabaseAdapter,
    name: str,
    sieve: Sieve,
    schemas: Sequence[TableSchema],
    arrivals: tuple[int, int],
    page: int = PAGE,
    cold: Sequence[DatabaseAdapter] = (),
) -> Iterator[Flowed]:
    """Carry over again what reached the source in a range of arrivals; the flow's mark stays where it is.

    A database knows each delta by its id and makes the rows of these deltas again. An object store knows none, so it
    gets the deltas that none of its objects holds.

    Args:
        source: where from.
        target: where to.
        name: of the flow's mark.
        sieve: what goes over.
        schemas: of the tables of rows that the target keeps.
        arrivals: the first and the last.
        page: deltas that are looked at at once.
        cold: where older deltas of the target's rows may be.

    Raises:
        AdapterError, IntegrityError, ConfigurationError: as `flow_to`.
    """
    marked = _marked(target)
    text = marked.mark(name)
    at = _read(text, name, sieve)
    kept = text if text is not None else msgspec.json.encode(at).decode()
    shown = Filtered(sieve, OlderRows(cold))
    query = DeltaQuery(since=arrivals[0] - 1, until=arrivals[1], tables=sieve.tables, limit=page)
    for looked_at, found, _ in going_over(source, query, at, sieve, partial(_held_rows, (target, *cold))):
        deltas = _lacking(target, found) if isinstance(target, ObjectDeltas) else found
        if len(deltas):
            wanted = held_in_table(deltas)
            batch_id = f"{name.replace('/', '.')}.{wanted.deltas}-{wanted.id_sum:016x}"
            marked.follow_arrow(batch_id, deltas, Mark(name, text, kept), schemas, shown)
            text = kept
        yield Flowed(looked_at, len(found), at, by_day(found), is_replay=True)


def new_deltas(at: FlowMark, sieve: Sieve, page: int = PAGE, until: int | None = None) -> DeltaQuery:
    """What a flow has yet to look at, and what it looks back at.

    Args:
        at: how far the flow is.
        sieve: what goes over.
        page: deltas that are looked at at once.
        until: the last arrival that is looked at; None: all.
    """
    if len(sieve.gateways) == 1:  # which writes in order
        return DeltaQuery(gateway=sieve.gateways[0], tables=sieve.tables, after=at.position, until=until, limit=page)
    back = -1
    if at.position is not None:
        back = max(-1, at.position.value - (LOOK_BACK_MS << hlc.COUNTER_BITS))
    return DeltaQuery(since=back, tables=sieve.tables, until=until, limit=page)


def going_over(
    source: DatabaseAdapter,
    query: DeltaQuery,
    at: FlowMark,
    sieve: Sieve,
    held: Callable[[str, str, Sequence[str]], set[str]],
) -> Iterator[tuple[int, pa.Table, Position | None]]:
    """Page by page: how many deltas were looked at, those that go over, and where the page ends.

    Args:
        source: where from.
        query: what is looked at.
        at: how far the flow is.
        sieve: what goes over.
        held: which of a gateway's rows of a table the target has, by their ids.
    """
    import pyarrow as pa

    for found in walk(partial(read_arrow, source), query):
        deltas = spelled(sieve.chosen(found.deltas))
        looked_at, after = len(found.deltas), _last(found.deltas, at.position)
        if sieve.where and len(deltas):
            deltas = pa.concat_tables([deltas.slice(0, 0), *_of_rows_that_meet(source, deltas, sieve, held)])
        if looked_at:
            yield looked_at, deltas, after


def _of_rows_that_meet(
    source: DatabaseAdapter, deltas: pa.Table, sieve: Sieve, held: Callable[[str, str, Sequence[str]], set[str]]
) -> Iterator[pa.Table]:
    """Deltas of rows that meet the filter or did once; of rows that are new over there, all that the source has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    groups = deltas.group_by(["gateway", "table_name"]).aggregate([])
    for gateway, table in zip(*(groups.column(name).to_pylist() for name in ("gateway", "table_name")), strict=True):
        own = deltas.filter(
            pc.and_(pc.equal(deltas.column("gateway"), gateway), pc.equal(deltas.column("table_name"), table))
        )
        rows = pc.unique(own.column("row_id")).to_pylist()
        states = source.get_latest_state(gateway, table, rows)
        met = {row for row, state in states.items() if sieve.meets(state)}
        there = held(gateway, table, rows)
        yield own.filter(pc.is_in(own.column("row_id"), pa.array(sorted(there), pa.string())))
        fresh = sorted(met - there)
        for start in range(0, len(fresh), _ROWS_AT_ONCE):
            query = DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(fresh[start : start + _ROWS_AT_ONCE]))
            for found in walk(partial(read_arrow, source), query):
                yield spelled(sieve.chosen(found.deltas))


def _marked(target: DatabaseAdapter) -> Marked:
    """Raises: ConfigurationError: the target keeps no marks."""
    if not isinstance(target, Marked):
        raise ConfigurationError(f"{type(target).__name__} keeps no marks, so no flow can lead to it: use a database")
    return target


def _lacking(target: DatabaseAdapter, deltas: pa.Table) -> pa.Table:
    """Deltas that the target does not hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(deltas):
        return deltas
    span = pc.min_max(deltas.column("arrival")).as_py()
    query = DeltaQuery(since=span["min"] - 1, until=span["max"], limit=PAGE)
    pages = walk(partial(read_arrow, target), query)
    there = {key for page in pages for key in zip(*(page.deltas.column(name).to_pylist() for name in _ID), strict=True)}
    own = zip(*(deltas.column(name).to_pylist() for name in _ID), strict=True)
    return deltas.filter(pa.array([key not in there for key in own], pa.bool_()))


def _held_rows(tiers: Sequence[DatabaseAdapter], gateway: str, table: str, rows: Sequence[str]) -> set[str]:
    return {row for tier in tiers for row in tier.get_latest_state(gateway, table, rows)}


def _last(deltas: pa.Table, before: Position | None) -> Position | None:
    """The place after a page, or the one that was reached before where that is further."""
    from lakesync.adapters.pieces import last_position

    if not len(deltas):
        return before
    last = last_position(deltas, "arrival")
    return last if before is None else max(last, before)


def _read(text: str | None, name: str, sieve: Sieve) -> FlowMark:
    found = progress_in(text, FlowMark, name)
    return found if found is not None and found.sieve == sieve else FlowMark(sieve)
