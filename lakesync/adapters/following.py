"""Following the lake's history: what a follower has taken is told by its mark, which changes together with its rows.

Deltas come in order of (gateway, shard, arrival). A mark speaks of whole arrivals alone, as one arrival is one push. A
database takes many arrivals in one transaction; an object store takes the lake's own batches, one object each, as
those are the same whoever comes again. `loads.py` divides a large backlog among followers of a part each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import held_in_table
from lakesync.adapters.base import (
    NOTHING_BESIDE,
    Beside,
    DatabaseAdapter,
    DeltaQuery,
    Held,
    Mark,
    Marked,
    StateWriter,
)
from lakesync.adapters.buckets import Part
from lakesync.adapters.contents import RowContent, RowId
from lakesync.adapters.dead_letters import Isolating
from lakesync.adapters.flat import COLUMNS
from lakesync.adapters.objects import ObjectDeltas
from lakesync.adapters.progress import progress_in
from lakesync.adapters.several import read_arrow, read_contents, walk
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, ConfigurationError, IntegrityError, SchemaError
from lakesync.model.hlc import wall_clock, wall_of
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 25_000
"""Deltas from which a database's transaction ends, at the next whole arrival."""
HISTORY = (*COLUMNS, "shard", "batch_id")
"""The columns of the lake's `deltas` that a follower is given."""
_PLACE = ("gateway", "shard", "arrival")
NO_STREAMS: Mapping[str, int] = {}


class Choice(msgspec.Struct, frozen=True):
    """Which deltas a follower wants."""

    tables: tuple[str, ...] = ()
    """Empty: of every table."""
    without: tuple[str, ...] = ()
    """But for these."""
    gateways: tuple[str, ...] = ()
    """Empty: of every gateway."""
    part: Part | None = None
    """Of a divided load, this part alone."""


class Load(msgspec.Struct, frozen=True):
    """A backlog divided among parts that are taken at the same time, each with a mark of its own."""

    id: str
    parts: int
    until: dict[str, int]
    """`GATEWAY/SHARD` → the last arrival that belongs to it."""
    by_batch: bool = False
    """As `Part`."""
    shown: dict[str, tuple[str, ...]] = {}
    """As `Standing`, of the tables of rows that the parts write."""

    def part(self, number: int) -> Part:
        """Return one of its parts."""
        return Part(self.id, number, self.parts, self.by_batch)


class Standing(msgspec.Struct, frozen=True):
    """How far a follower is: what its mark says."""

    choice: Choice = Choice()
    streams: dict[str, int] = {}
    """`GATEWAY/SHARD` → arrival; everything of it up to there was taken."""
    deltas: int = 0
    """Taken so far, each once."""
    id_sum: int = 0
    """Of their ids, modulo 2**64."""
    shown: dict[str, tuple[str, ...]] = {}
    """Table of rows → the columns that its rows have."""
    load: Load | None = None
    """Begun and not yet ended; what its parts took is not counted here yet."""

    def after(self, gateway: str, shard: str) -> int:
        """The arrival above which the follower lacks a stream's deltas."""
        return self.streams.get(stream(gateway, shard), -1)


class Taken(msgspec.Struct, frozen=True):
    """A part that a follower has taken."""

    deltas: int
    standing: Standing
    """Afterwards."""
    days: dict[str, int] = {}
    """UTC day of arrival, `YYYY-MM-DD` → how many of the deltas."""


def stream(gateway: str, shard: str) -> str:
    """The name of a gateway's stream of one shard: each counts its own arrivals."""
    return f"{gateway}/{shard}"


def standing(adapter: DatabaseAdapter, name: str, choice: Choice, since: Mapping[str, int] = NO_STREAMS) -> Standing:
    """How far a follower is; from nothing where it wanted something else before, which it then takes again.

    Args:
        adapter: what follows.
        name: of the follower, for its mark.
        choice: what it wants.
        since: `GATEWAY/SHARD` → arrival from which a follower without a mark begins.

    Raises:
        ConfigurationError: the adapter keeps no marks.
        AdapterError: it cannot be read.
        IntegrityError: its mark was not written by a follower.
    """
    return _read(marked(adapter).mark(name), name, choice, since)


def follow_history(
    adapter: DatabaseAdapter,
    name: str,
    choice: Choice,
    history: Iterable[pa.RecordBatch],
    schemas: Sequence[TableSchema] = (),
    beside: Beside = NOTHING_BESIDE,
    upto: Mapping[str, int] = NO_STREAMS,
    at_once: int = AT_ONCE,
    since: Mapping[str, int] = NO_STREAMS,
) -> Iterator[Taken]:
    """Take what a follower lacks of the history, part by part.

    Args:
        adapter: what follows.
        name: of the follower, for its mark.
        choice: what it wants; `history` holds nothing else.
        history: `HISTORY`'s columns in order of gateway, shard and arrival; what was taken already is left out.
        schemas: of the tables of rows that it keeps.
        beside: what those show besides.
        upto: `GATEWAY/SHARD` → arrival up to which `history` holds everything that it wants.
        at_once: deltas a transaction.
        since: as `standing`.

    Raises:
        ConfigurationError: the adapter keeps no marks.
        AdapterError: it cannot be reached; a repeat goes on where it was.
        IntegrityError: another run moved the mark meanwhile, or it holds less than it was given.
    """
    marks = marked(adapter)
    text = marks.mark(name)
    at = _read(text, name, choice, since)
    shown = columns_shown(adapter, schemas) if choice.part is None else {}
    if shown:
        for schema in _to_show_again(adapter, name, schemas, at, shown):
            show_again_or_set_aside(adapter, name, schema, beside)
    at = replace(at, shown=shown, load=None)
    whole = ("batch_id",) if isinstance(adapter, ObjectDeltas) else _PLACE
    for part in parts_of(_lacking(history, at), whole, 1 if isinstance(adapter, ObjectDeltas) else at_once):
        wanted = held_in_table(part)
        now = _moved(at, choice, part, wanted)
        told = msgspec.json.encode(now).decode()
        found = marks.follow_arrow(
            part.column("batch_id")[0].as_py(), part.select(list(COLUMNS)), Mark(name, text, told), schemas, beside
        )
        if found != wanted:
            raise IntegrityError(
                f"follower {name!r} was given {wanted.deltas} deltas (sum of ids {wanted.id_sum}), and "
                f"{found.deltas} were read back ({found.id_sum}): compare the destination with the lake"
            )
        crash_point("follow.after_part")
        text, at = told, now
        yield Taken(wanted.deltas, now, by_day(part))
    whole_streams = {**at.streams, **{name: max(last, at.streams.get(name, -1)) for name, last in upto.items()}}
    at = replace(at, streams=whole_streams)  # what it did not want it need not look at again
    told = msgspec.json.encode(at).decode()
    if at.streams and told != text:
        marks.move_mark(Mark(name, text, told))
        yield Taken(0, at)


def columns_shown(adapter: DatabaseAdapter, schemas: Sequence[TableSchema]) -> dict[str, tuple[str, ...]]:
    """What an adapter's tables of rows have when they follow: nothing where it keeps none."""
    if not isinstance(adapter, StateWriter):
        return {}
    own = ("gateway", "last_arrival")  # which tables of earlier versions lack
    return {schema.table: (*own, *(column.name for column in schema.columns)) for schema in schemas}


def _to_show_again(
    adapter: DatabaseAdapter,
    name: str,
    schemas: Sequence[TableSchema],
    at: Standing,
    shown: Mapping[str, tuple[str, ...]],
) -> list[TableSchema]:
    """The tables of rows that lack columns, and those that were set aside and whose next attempt is due."""
    asides = {each.table: each for each in adapter.set_aside(name)} if isinstance(adapter, Isolating) else {}
    now = wall_clock()
    found = []
    for schema in schemas:
        aside = asides.get(schema.table)
        lacks_columns = at.deltas > 0 and at.shown.get(schema.table) != shown[schema.table]
        if aside.retry_ms <= now if aside is not None else lacks_columns:
            found.append(schema)
    return found


def show_again_or_set_aside(
    adapter: DatabaseAdapter, name: str, schema: TableSchema, beside: Beside = NOTHING_BESIDE
) -> None:
    """Write every row of a table of rows; the follower continues without the table if that fails.

    Raises:
        AdapterError: the adapter cannot be reached; a repeat begins again.
    """
    try:
        show_again(adapter, schema, beside)
    except (AdapterError, SchemaError) as error:
        if not isinstance(adapter, Isolating):
            raise
        adapter.put_aside(name, schema.table, str(error))
        return
    if isinstance(adapter, Isolating):
        adapter.bring_back(name, schema.table)


def show_again(adapter: DatabaseAdapter, schema: TableSchema, beside: Beside = NOTHING_BESIDE) -> int:
    """Write every row of a table of rows, for one that was not there, or lacked a column, when its deltas came.

    Returns:
        How many rows were looked at, page by page.

    Raises:
        AdapterError: the adapter cannot be reached; a repeat begins again.
    """
    read, contents = partial(read_arrow, adapter), partial(read_contents, adapter)
    if not isinstance(adapter, StateWriter):
        return 0
    adapter.ensure_schema(schema)
    looked_at = 0
    for page in walk(read, DeltaQuery(tables=(schema.table,))):
        names = (page.deltas.column(name).to_pylist() for name in ("gateway", "row_id"))
        rows = list(dict.fromkeys(zip(*names, strict=True)))
        if rows:
            looked_at += adapter.write_states(schema, partial(_shown, contents, schema, rows, beside))
    return looked_at


class OlderRows:
    """`Beside` of a hot tier: deltas of a row that went to a cold one count too."""

    def __init__(self, cold: Sequence[DatabaseAdapter]) -> None:
        """Args: cold: where they went."""
        self._cold = cold

    def shown(
        self, schema: TableSchema, rows: Sequence[RowId], contents: Mapping[RowId, RowContent]
    ) -> Mapping[RowId, RowContent]:
        """The merge of both tiers."""
        together = dict(contents)
        for adapter in self._cold:
            for row, content in read_contents(adapter, schema.table, rows).items():
                together[row] = together[row].united(content) if row in together else content
        return together


def _shown(
    contents: Callable[[str, Sequence[RowId]], dict[RowId, RowContent]],
    schema: TableSchema,
    rows: Sequence[RowId],
    beside: Beside,
) -> Mapping[RowId, RowContent]:
    return beside.shown(schema, rows, contents(schema.table, rows))


def marked(adapter: DatabaseAdapter) -> Marked:
    """The adapter as one that keeps marks.

    Raises:
        ConfigurationError: it keeps none.
    """
    if not isinstance(adapter, Marked):
        raise ConfigurationError(
            f"{type(adapter).__name__} keeps no followers' marks, so it cannot be a destination: use a database or an "
            "object store"
        )
    return adapter


def _read(text: str | None, name: str, choice: Choice, since: Mapping[str, int] = NO_STREAMS) -> Standing:
    found = progress_in(text, Standing, name)
    return found if found is not None and found.choice == choice else Standing(choice, dict(since))


def _lacking(history: Iterable[pa.RecordBatch], at: Standing) -> Iterator[pa.RecordBatch]:
    """Without what was taken already."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in history:
        if not batch.num_rows:
            continue
        marks = [at.after(*place) for place in _streams(batch)]
        left = batch.filter(pc.greater(batch.column("arrival"), pa.array(marks, pa.int64())))
        if left.num_rows:
            yield left


def by_day(part: pa.Table) -> dict[str, int]:
    """Count deltas: UTC day of arrival → deltas."""
    counted = part.group_by("arrival").aggregate([([], "count_all")])
    days: dict[str, int] = {}
    for arrival, count in zip(*(counted.column(name).to_pylist() for name in ("arrival", "count_all")), strict=True):
        day = f"{datetime.fromtimestamp(wall_of(arrival) / 1000, UTC):%Y-%m-%d}"
        days[day] = days.get(day, 0) + count
    return days


def _streams(batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
    gateways, shards = (batch.column(name).to_pylist() for name in ("gateway", "shard"))
    return zip(gateways, shards, strict=True)


def parts_of(history: Iterable[pa.RecordBatch], whole: Sequence[str], at_once: int) -> Iterator[pa.Table]:
    """Tables of at least so many deltas, the last apart, none of which ends where `whole` columns stay the same."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in history:
        waiting.append(batch)
        count += batch.num_rows
        while count > at_once:
            table = pa.Table.from_batches(waiting)
            end = _border(table, whole, at_once)
            if end is None:
                break
            yield table.slice(0, end)
            rest = table.slice(end)
            waiting, count = rest.to_batches(), len(rest)
    if waiting:
        table = pa.Table.from_batches(waiting)
        while (end := _border(table, whole, at_once)) is not None:
            yield table.slice(0, end)
            table = table.slice(end)
        yield table


def _border(table: pa.Table, whole: Sequence[str], at_least: int) -> int | None:
    """Where the first part of at least so many rows ends; None where it may go on behind the table's end."""
    import pyarrow.compute as pc

    start = at_least - 1
    if start + 1 >= len(table):
        return None
    before, behind = table.slice(start, len(table) - start - 1), table.slice(start + 1)
    other = None
    for name in whole:
        differs = pc.not_equal(before.column(name), behind.column(name))
        other = differs if other is None else pc.or_(other, differs)
    place = pc.index(other, value=True).as_py()
    return None if place < 0 else int(start + 1 + place)


def _moved(at: Standing, choice: Choice, part: pa.Table, held: Held) -> Standing:
    streams = dict(at.streams)
    last = part.group_by(["gateway", "shard"]).aggregate([("arrival", "max")])
    for gateway, shard, arrival in zip(
        *(last.column(name).to_pylist() for name in ("gateway", "shard", "arrival_max")), strict=True
    ):
        streams[stream(gateway, shard)] = arrival
    return Standing(choice, streams, at.deltas + held.deltas, (at.id_sum + held.id_sum) % 2**64, at.shown)
