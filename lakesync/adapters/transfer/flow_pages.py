"""What a flow reads from its source: new deltas in pages, and late ones, of the rows that match its filter.

A *flow* copies deltas (changes of rows) from one backend to another (`flows`), or into the lake
(`lakehouse.backends.flows`). Both call `new_pages`, and `filtered_pages` to copy chosen days again. A delta's
*arrival* is the timestamp that its *gateway*, which has the changes of one app, gave to the push. A *page* is the
deltas that are read from the source together.

The filter applies to rows, not to deltas. When a row starts to match, all of its deltas are copied. A row that has
matched once continues to be copied, except into the lake.

A backend stores the deltas of each gateway in order of arrival, but older ones of another gateway may be written later.
So each run reads the hour before its mark again. If the pipeline writes the source, by *followers* or other flows,
still older ones are found too: the flow remembers how far each of these had written every *stream* (the deltas of a
gateway in one shard, a part of its tables).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import arrow_schema, columns_as_text, split_by_table
from lakesync.adapters.arrow_access import read_pages
from lakesync.adapters.base import DatabaseAdapter, MarkStore
from lakesync.adapters.deltas import PAGE_DELTAS, DeltaQuery, TableSelection, queries_of_rows
from lakesync.adapters.file_scan import last_position
from lakesync.adapters.transfer.follower import FollowerProgress
from lakesync.adapters.transfer.loads import StreamSource, WrittenStreams, active_loads, single_adapters
from lakesync.adapters.transfer.progress import ProgressInMark, require_marks
from lakesync.config.backends import Condition
from lakesync.model import hlc
from lakesync.model.merge import RowState
from lakesync.model.types import Position
from lakesync.rules.model import holds, text_of_raw

if TYPE_CHECKING:
    import pyarrow as pa

_LOOK_BACK_MS = 3_600_000
"""By how much a gateway's deltas may be written later than newer ones of another gateway in the same backend. Each run
reads this span again, so it is short. It is independent of the span with which a `FanOutAdapter` catches up."""


class RowFilter(TableSelection, frozen=True):
    """Selects the rows to copy: those that fulfil all conditions."""

    where: tuple[tuple[str, str, str], ...] = ()
    """`(column, operator, value)` conditions on a row's state, with the operators of sync rules, such as `eq`."""

    @classmethod
    def from_conditions(cls, conditions: Sequence[Condition], **selection: tuple[str, ...]) -> RowFilter:
        """Create a filter from a declared flow.

        Args:
            conditions: the conditions on a row's state.
            selection: `tables`, `without` and `gateways`.
        """
        return cls(where=tuple((each.column, each.op, each.value) for each in conditions), **selection)

    def matches(self, state: RowState) -> bool:
        """Return whether a row is visible and its state satisfies all conditions. Does not check the table."""
        values = state.values()
        return state.visible and all(
            column in values and holds(op, text_of_raw(values[column]), (value,))  # type: ignore[arg-type]
            for column, op, value in self.where
        )


class FlowProgress(msgspec.Struct, frozen=True, rename={"row_filter": "sieve"}):
    """A flow's progress, stored as JSON in its mark at the target."""

    row_filter: RowFilter
    """Stored as `sieve`. A flow whose filter has changed starts again."""
    position: Position | None = None
    """Everything up to this position of the source was copied; None before the first page."""
    deltas: int = 0
    """Deltas copied, including those copied again while looking back."""
    streams: dict[str, dict[str, int]] = {}
    """`WrittenStreams.streams` of the source, as of the last run: writer → stream → arrival. Deltas up to there were
    copied, except those beyond `position`. Empty if nothing in LakeSync wrote the source then."""
    row_columns: dict[str, tuple[str, ...]] = {}
    """Synced table → columns that all rows of its destination table have."""
    epochs: dict[str, int] = {}
    """Of a flow into the lake: the epochs of the staging store that got the deltas, by `GATEWAY/SHARD`. A store that
    was rebuilt from the lake has other epochs, and may lack deltas, so the flow starts again."""


class FilteredPage(NamedTuple):
    """A page of the source, with the deltas of rows that match a flow's filter."""

    scanned: int
    """Deltas read from the source."""
    deltas: pa.Table
    """The deltas to copy. They include earlier ones of rows that match only now."""
    position: Position | None
    """The flow's position after the page; None before the first delta."""


class NewPage(NamedTuple):
    """What a flow copies in one step of a run."""

    scanned: int
    """Deltas read from the source; 0 if only the progress has changed."""
    deltas: pa.Table
    """The deltas to copy."""
    progress: FlowProgress
    """The flow's progress after the page."""


def written_by(source: DatabaseAdapter, followers: Collection[str] = (), flows: Collection[str] = ()) -> WrittenStreams:
    """Return how far followers and other flows have written the source of a flow.

    Args:
        source: the source; not a `LoadBarrier`, which hides deltas while a follower's backlog is loaded, but what it
            wraps.
        followers: names of followers that write to it.
        flows: names of flows that write to it.

    Raises:
        AdapterError: the source cannot be read.
    """
    streams: dict[str, dict[str, int]] = {}
    by_filtered_flow = False
    for each in single_adapters(source):
        if isinstance(each, StreamSource):
            streams[""] = each.latest_arrivals()
        if not isinstance(each, MarkStore):
            continue
        marks = require_marks(each)
        for name in followers:
            follower = ProgressInMark(marks, name, FollowerProgress).read()
            if follower is not None:  # with another selection, the follower writes old deltas too
                streams[f"{name} {msgspec.json.encode(follower.selection).decode()}"] = follower.streams
        for name in flows:
            flow = ProgressInMark(marks, name, FlowProgress).read()
            if flow is None or flow.position is None:
                continue
            # stream → the arrival up to which the flow has copied what every writer of its own source has written
            copied: dict[str, int] = {}
            for written in flow.streams.values():
                for stream, arrival in written.items():
                    copied[stream] = min(arrival, copied.get(stream, flow.position.value))
            row_filter = msgspec.json.encode(flow.row_filter).decode()  # with another one, it writes old deltas too
            streams[f"{name} {row_filter}"] = copied
            by_filtered_flow = by_filtered_flow or bool(flow.row_filter.where)
    return WrittenStreams(streams, tuple(active_loads(source)), by_filtered_flow)


def new_pages(
    source: DatabaseAdapter,
    progress: FlowProgress,
    row_filter: RowFilter,
    stored_rows: Callable[[str, str, Sequence[str]], set[str]],
    page: int = PAGE_DELTAS,
    until: int | None = None,
    read_written: Callable[[], WrittenStreams] = WrittenStreams,
) -> Iterator[NewPage]:
    """Yield the pages of a run.

    First come deltas from before the look-back that followers and flows have written since the last run. A last page
    may only have progress: then no delta was read. `run_flow` calls it, and the pipeline for a flow into the lake.

    Args:
        source: the backend to read.
        progress: the flow's progress.
        row_filter: the rows to copy.
        stored_rows: returns which row ids of a gateway's table the target already has.
        page: deltas read at once.
        until: the last arrival to read; None for no bound.
        read_written: returns how far followers and other flows have written the source, as `written_by` does.
    """
    before = read_written()
    query = DeltaQuery(tables=row_filter.tables, until=until, limit=page)
    if len(row_filter.gateways) == 1:  # one gateway's deltas are written in order of arrival: no need to look back
        query = replace(query, gateway=row_filter.gateways[0], after=progress.position)
    elif progress.position is not None:
        query = replace(query, since=max(-1, progress.position.value - (_LOOK_BACK_MS << hlc.COUNTER_BITS)))
    read = partial(filtered_pages, source, row_filter=row_filter, stored_rows=stored_rows)
    for late in _late_queries(progress, query, before.streams):
        for scanned, deltas, _ in read(late, progress, by_row=before.by_filtered_flow):
            progress = replace(progress, deltas=progress.deltas + len(deltas))
            yield NewPage(scanned, deltas, progress)
    # The streams that were read before the late deltas become a part of the progress: with the first page, or alone if
    # there is no page. If a load hid deltas meanwhile, the old streams stay, so that the next run compares with them.
    has_unstored_streams = before.streams != progress.streams and before.had_no_load_until(read_written())
    if has_unstored_streams:
        progress = replace(progress, streams=before.streams)
    for scanned, deltas, end in read(query, progress, by_row=before.by_filtered_flow):
        progress = replace(progress, position=end or progress.position, deltas=progress.deltas + len(deltas))
        has_unstored_streams = False  # the caller stores the yielded progress
        yield NewPage(scanned, deltas, progress)
    if has_unstored_streams and progress.position is not None:
        yield NewPage(0, arrow_schema().empty_table(), progress)


def filtered_pages(
    source: DatabaseAdapter,
    query: DeltaQuery,
    progress: FlowProgress,
    row_filter: RowFilter,
    stored_rows: Callable[[str, str, Sequence[str]], set[str]],
    *,
    by_row: bool = False,
) -> Iterator[FilteredPage]:
    """Yield the pages of a query, filtered.

    `run_flow` and `replay_flow` call it, and the pipeline for a flow into the lake.

    Args:
        source: the backend to read.
        query: the deltas to read.
        progress: the flow's progress. The yielded positions never go back behind its position.
        row_filter: the rows to copy.
        stored_rows: returns which row ids of a gateway's table the target already has.
        by_row: copy all deltas of a row that the target does not have, also without conditions.
    """
    import pyarrow as pa

    for page in read_pages(source, query):
        deltas = columns_as_text(row_filter.select(page.deltas))
        scanned, end = len(page.deltas), _position_after(page.deltas, progress.position)
        if (row_filter.where or by_row) and len(deltas):
            deltas = pa.concat_tables(
                [deltas.slice(0, 0), *_deltas_of_matching_rows(source, deltas, row_filter, stored_rows)]
            )
        if scanned:
            yield FilteredPage(scanned, deltas, end)


def _late_queries(
    progress: FlowProgress, query: DeltaQuery, streams: Mapping[str, Mapping[str, int]]
) -> Iterator[DeltaQuery]:
    """Yield queries for deltas that were written since the last run, and that `query` does not read.

    Args:
        progress: the flow's progress.
        query: the query of the run's new deltas.
        streams: how far each writer has written the source, as `WrittenStreams.streams`.
    """
    if progress.position is None:
        return
    # A stream's new deltas are those after `low` and up to `high`; `query` itself reads what is after `last`.
    last = query.since if query.after is None else query.after.value
    ranges: dict[str, tuple[int, int]] = {}  # gateway → the arrivals of its late deltas, without the first one
    for writer, of_writer in streams.items():
        before = progress.streams.get(writer, {})
        for stream, arrival in of_writer.items():
            low, high = before.get(stream, -1), min(arrival, last)
            if low < high:
                gateway = stream.partition("/")[0]
                lowest, highest = ranges.get(gateway, (low, high))
                ranges[gateway] = (min(low, lowest), max(high, highest))
    for gateway, (low, high) in sorted(ranges.items()):
        if progress.row_filter.has_gateway(gateway):
            yield DeltaQuery(gateway=gateway, tables=query.tables, since=low, until=high, limit=query.limit)


def _deltas_of_matching_rows(
    source: DatabaseAdapter,
    deltas: pa.Table,
    row_filter: RowFilter,
    stored_rows: Callable[[str, str, Sequence[str]], set[str]],
) -> Iterator[pa.Table]:
    """Yield the deltas of rows that the target stores, and all deltas of matching rows that it does not store yet."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for gateway, table, of_table in split_by_table(deltas):
        rows = pc.unique(of_table.column("row_id")).to_pylist()
        states = source.get_latest_state(gateway, table, rows)
        # without conditions, deleted rows are copied too
        matching = {row for row, state in states.items() if not row_filter.where or row_filter.matches(state)}
        stored = stored_rows(gateway, table, rows)
        yield of_table.filter(pc.is_in(of_table.column("row_id"), pa.array(sorted(stored), pa.string())))
        new_rows = sorted(matching - stored)
        for query in queries_of_rows(table, ((gateway, row_id) for row_id in new_rows)):
            for page in read_pages(source, query):
                yield columns_as_text(row_filter.select(page.deltas))


def _position_after(deltas: pa.Table, before: Position | None) -> Position | None:
    """Return the position after a page, or `before` if that is further, because the page was read again."""
    if not len(deltas):
        return before
    last = last_position(deltas, "arrival")
    return last if before is None else max(last, before)
