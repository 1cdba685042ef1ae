"""Flows: incremental copies of new deltas from one backend to another, for rows that match a filter.

`[flows.NAME]` in `lakesync.toml` declares a flow; `lakehouse.backends.transfers` runs it in a Spark task. A *delta* is
a change of one row. Its *arrival* is the timestamp that its *gateway*, which has the changes of one app, gave to the
push. A *page* is the deltas that are read from the source together.

The filter applies to rows, not to deltas. When a row starts to match, all of its deltas are copied. A row that has
matched once continues to be copied, and is hidden in the *destination table* (the target's table of current rows) while
it does not match.

A flow's *mark*, a text at the target, says up to which position of the source it has copied. A backend stores the
deltas of each gateway in order of arrival, but older ones of another gateway may be written later. So each run reads
the hour before its mark again. If the pipeline writes the source, by *followers* or other flows, still older ones are
found too: the flow remembers how far each of these had written every *stream* (the deltas of a gateway in one shard, a
part of its tables). Old deltas of the target may be in *cold tiers*, backends to which they were moved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import arrow_schema, columns_as_text, split_by_table, table_checksum
from lakesync.adapters.arrow_access import missing_deltas, read_pages
from lakesync.adapters.base import ContentTransform, DatabaseAdapter, MarkStore, StateWriter
from lakesync.adapters.composite import cold_tier_contents
from lakesync.adapters.deltas import (
    PAGE_DELTAS,
    BatchChecksum,
    DeltaQuery,
    RowContent,
    RowId,
    TableSelection,
    queries_of_rows,
)
from lakesync.adapters.file_scan import last_position
from lakesync.adapters.transfer.follower import count_by_day
from lakesync.adapters.transfer.loads import WrittenStreams, single_adapters, written_streams
from lakesync.adapters.transfer.progress import ProgressInMark, require_marks
from lakesync.adapters.transfer.table_rewrites import columns_of_tables, rewrite_outdated_tables
from lakesync.config.backends import Condition
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import IntegrityError, Rejection
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema
from lakesync.model.types import Position
from lakesync.rules.model import holds, text_of_raw

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_BACK_MS = 3_600_000
"""By how much a gateway's deltas may be written later than newer ones of another gateway in the same backend."""


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
    was rebuilt from the lake has others, and may lack deltas, so the flow starts again."""


class FlowStep(msgspec.Struct, frozen=True):
    """A page that was processed."""

    scanned: int
    """Deltas read from the source."""
    deltas: int
    """Copied deltas."""
    progress: FlowProgress
    """The flow's progress after the page."""
    days: dict[str, int] = {}
    """UTC day of arrival, `YYYY-MM-DD` → how many of `deltas`."""
    is_replay: bool = False
    """Whether the page belongs to a replay of chosen days."""
    rejected: tuple[Rejection, ...] = ()
    """The deltas that a gateway rejected, of a flow into the lake. They were not copied."""
    suspended: tuple[str, ...] = ()
    """The suspended destination tables. Only a last step without deltas has them, if there are any."""


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


def written_by(source: DatabaseAdapter, followers: Collection[str], flows: Collection[str]) -> WrittenStreams:
    """Return how far followers and other flows have written the source of a flow.

    Args:
        source: the source; not a `LoadBarrier`, which hides deltas while a follower's backlog is loaded, but what it
            wraps.
        followers: names of followers that write to it.
        flows: names of flows that write to it.

    Raises:
        AdapterError: the source cannot be read.
    """
    written = written_streams(source, followers)
    for each in single_adapters(source):
        for name in flows if isinstance(each, MarkStore) else ():
            progress = ProgressInMark(require_marks(each), name, FlowProgress).read()
            if progress is None or progress.position is None:
                continue
            # stream → the arrival up to which the flow has copied what every writer of its own source has written
            copied: dict[str, int] = {}
            for streams in progress.streams.values():
                for stream, arrival in streams.items():
                    copied[stream] = min(arrival, copied.get(stream, progress.position.value))
            row_filter = msgspec.json.encode(progress.row_filter).decode()  # with another one, it writes old deltas too
            written = replace(
                written,
                streams={**written.streams, f"{name} {row_filter}": copied},
                by_filtered_flow=written.by_filtered_flow or bool(progress.row_filter.where),
            )
    return written


def filtered_contents(row_filter: RowFilter, transform: ContentTransform) -> ContentTransform:
    """Return the `ContentTransform` of a flow: it hides rows that do not match the filter in the destination table.

    Args:
        row_filter: the flow's filter.
        transform: changes the contents before the filter sees them.
    """

    def hide_unmatched(
        schema: TableSchema, rows: Sequence[RowId], contents: Mapping[RowId, RowContent]
    ) -> Mapping[RowId, RowContent]:
        return {
            row: replace(content, is_hidden=True)
            if content.state.visible and not row_filter.matches(content.state)
            else content
            for row, content in transform(schema, rows, contents).items()
        }

    return hide_unmatched


def run_flow(
    source: DatabaseAdapter,
    target: DatabaseAdapter,
    name: str,
    row_filter: RowFilter,
    schemas: Sequence[TableSchema] = (),
    page: int = PAGE_DELTAS,
    cold: Sequence[DatabaseAdapter] = (),
    until: int | None = None,
    written: Callable[[], WrittenStreams] = WrittenStreams,
) -> Iterator[FlowStep]:
    """Copy what arrived at the source since the flow's mark.

    Destination tables whose schema has further columns are written again first. So are tables that were suspended,
    because the target could not write them, if their retry is due. The mark is stored at the target, and changes in the
    transaction that writes a page.

    Args:
        source: the backend to read.
        target: the backend to write.
        name: the flow's name, and the name of its mark.
        row_filter: the rows to copy.
        schemas: the target's destination tables.
        page: deltas read at once.
        cold: the cold tiers with older deltas of the target's rows.
        until: the last arrival to read; None for no bound.
        written: returns how far followers and other flows have written the source, as `written_by` does.

    Yields:
        Each page that was processed, after its mark was moved.

    Raises:
        AdapterError: a backend cannot be reached; a retry continues.
        IntegrityError: another run of the flow is active, or the target stores fewer deltas than were written.
        ConfigurationError: the target does not store marks.
    """
    mark = ProgressInMark(require_marks(target), name, FlowProgress)
    in_mark = mark.read()
    progress = _continued_progress(in_mark, row_filter)
    transform = filtered_contents(row_filter, cold_tier_contents(cold))
    row_columns = columns_of_tables(target, schemas)
    if isinstance(target, StateWriter):
        columns = progress.row_columns if progress.deltas else row_columns  # without deltas there are no rows
        rewrite_outdated_tables(target, name, schemas, row_columns, columns, transform, row_filter, cold)
    progress = replace(progress, row_columns=row_columns)
    # so that no run without deltas writes them again, and that an erasure can change the text of the first run's mark
    if in_mark is None or in_mark.row_columns != row_columns:
        mark.write(progress)
        in_mark = progress
    stored_rows = partial(_stored_rows, (target, *cold))
    pages = new_pages(source, progress, row_filter, stored_rows, page, until, written)
    for scanned, deltas, progress in pages:
        missing = missing_deltas(target, deltas)
        if len(missing):
            expected = table_checksum(missing)
            stored = mark.apply(_batch_id(name, expected), missing, progress, schemas, transform)
            if stored.deltas < expected.deltas:
                raise IntegrityError(
                    f"flow {name!r} wrote {expected.deltas} deltas and read back {stored.deltas}: compare both backends"
                )
        elif progress != in_mark:
            mark.write(progress)
        in_mark = progress
        crash_point("flow.after_page")  # tests kill the process here
        if scanned:
            yield FlowStep(scanned, len(deltas), progress, count_by_day(deltas))


def replay_flow(
    source: DatabaseAdapter,
    target: DatabaseAdapter,
    name: str,
    row_filter: RowFilter,
    schemas: Sequence[TableSchema],
    arrivals: tuple[int, int],
    page: int = PAGE_DELTAS,
    cold: Sequence[DatabaseAdapter] = (),
    written: Callable[[], WrittenStreams] = WrittenStreams,
) -> Iterator[FlowStep]:
    """Copy a range of arrivals again, for a backfill of chosen days. The flow's mark keeps its value.

    A database recognises each delta by its id and rewrites the rows. An object store does not, so it receives only
    deltas that none of its objects contains.

    Args:
        source: the backend to read.
        target: the backend to write.
        name: the flow's name, and the name of its mark.
        row_filter: the rows to copy.
        schemas: the target's destination tables.
        arrivals: the first and the last arrival, inclusive.
        page: deltas read at once.
        cold: the cold tiers with older deltas of the target's rows.
        written: as in `run_flow`.

    Raises:
        AdapterError: as `run_flow`, or a follower's load was in progress at the source, so that deltas were left out.
        IntegrityError, ConfigurationError: as `run_flow`.
    """
    before = written()
    mark = ProgressInMark(require_marks(target), name, FlowProgress)
    in_mark = mark.read()
    progress = _continued_progress(in_mark, row_filter)
    transform = filtered_contents(row_filter, cold_tier_contents(cold))
    query = DeltaQuery(since=arrivals[0] - 1, until=arrivals[1], tables=row_filter.tables, limit=page)
    for scanned, page_deltas, _ in filtered_pages(
        source, query, progress, row_filter, partial(_stored_rows, (target, *cold))
    ):
        deltas = missing_deltas(target, page_deltas)
        if len(deltas):
            # the mark keeps its value; without a mark, the progress of a new flow is written
            mark.apply(_batch_id(name, table_checksum(deltas)), deltas, in_mark or progress, schemas, transform)
        yield FlowStep(scanned, len(page_deltas), progress, count_by_day(page_deltas), is_replay=True)
    before.require_readable_until(written())


def new_deltas_query(
    progress: FlowProgress, row_filter: RowFilter, page: int = PAGE_DELTAS, until: int | None = None
) -> DeltaQuery:
    """Return the query for a flow's new deltas, and for those of the last hour before its mark.

    Args:
        progress: the flow's progress.
        row_filter: the rows to copy.
        page: deltas read at once.
        until: the last arrival to read; None for no bound.
    """
    if len(row_filter.gateways) == 1:  # one gateway's deltas are written in order of arrival: no need to look back
        return DeltaQuery(
            gateway=row_filter.gateways[0], tables=row_filter.tables, after=progress.position, until=until, limit=page
        )
    since = -1
    if progress.position is not None:
        since = max(-1, progress.position.value - (LOOK_BACK_MS << hlc.COUNTER_BITS))
    return DeltaQuery(since=since, tables=row_filter.tables, until=until, limit=page)


def new_pages(
    source: DatabaseAdapter,
    progress: FlowProgress,
    row_filter: RowFilter,
    stored_rows: Callable[[str, str, Sequence[str]], set[str]],
    page: int = PAGE_DELTAS,
    until: int | None = None,
    written: Callable[[], WrittenStreams] = WrittenStreams,
) -> Iterator[NewPage]:
    """Yield the pages of a run.

    First come deltas from before the look-back that followers and flows have written since the last run. A last page
    may only have progress: then no delta was read. `run_flow` calls it, and the pipeline for a flow into the lake.

    Args:
        source: the backend to read.
        progress: the flow's progress.
        row_filter: the rows to copy.
        stored_rows: as in `filtered_pages`.
        page: deltas read at once.
        until: the last arrival to read; None for no bound.
        written: as in `run_flow`.
    """
    query, before = new_deltas_query(progress, row_filter, page, until), written()
    read = partial(filtered_pages, source, row_filter=row_filter, stored_rows=stored_rows)
    for late in _late_queries(progress, query, before.streams):
        for scanned, deltas, _ in read(late, progress, by_row=before.by_filtered_flow):
            progress = replace(progress, deltas=progress.deltas + len(deltas))
            yield NewPage(scanned, deltas, progress)
    # if deltas were hidden meanwhile, the next run must compare with the streams of the last one again
    has_new_streams = before.streams != progress.streams and before.is_readable_until(written())
    if has_new_streams:
        progress = replace(progress, streams=before.streams)
    for scanned, deltas, end in read(query, progress, by_row=before.by_filtered_flow):
        progress = replace(progress, position=end or progress.position, deltas=progress.deltas + len(deltas))
        has_new_streams = False
        yield NewPage(scanned, deltas, progress)
    if has_new_streams and progress.position is not None:
        yield NewPage(0, arrow_schema().empty_table(), progress)


def _late_queries(
    progress: FlowProgress, query: DeltaQuery, streams: Mapping[str, Mapping[str, int]]
) -> Iterator[DeltaQuery]:
    """Yield queries for deltas that were written since the last run, and that `query` does not read.

    Args:
        progress: the flow's progress.
        query: the result of `new_deltas_query`.
        streams: how far followers have written, as `WrittenStreams.streams`.
    """
    if progress.position is None:
        return
    # A stream's new deltas are those after `low` and up to `high`; `query` itself reads what is after `last`.
    last = query.since if query.after is None else query.after.value
    ranges: dict[str, tuple[int, int]] = {}  # gateway → the arrivals of its late deltas, without the first one
    for follower, of_follower in streams.items():
        before = progress.streams.get(follower, {})
        for stream, arrival in of_follower.items():
            low, high = before.get(stream, -1), min(arrival, last)
            if low < high:
                gateway = stream.partition("/")[0]
                lowest, highest = ranges.get(gateway, (low, high))
                ranges[gateway] = (min(low, lowest), max(high, highest))
    for gateway, (low, high) in sorted(ranges.items()):
        if progress.row_filter.has_gateway(gateway):
            yield DeltaQuery(gateway=gateway, tables=query.tables, since=low, until=high, limit=query.limit)


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


def _batch_id(name: str, checksum: BatchChecksum) -> str:
    """Return a batch id by the content, so that an interrupted page is written again as the same batch."""
    return f"{name.replace('/', '.')}.{checksum.deltas}-{checksum.id_sum:016x}"


def _stored_rows(tiers: Sequence[DatabaseAdapter], gateway: str, table: str, rows: Sequence[str]) -> set[str]:
    """Return those row ids of which a tier stores deltas."""
    return {row for tier in tiers for row in tier.get_latest_state(gateway, table, rows)}


def _position_after(deltas: pa.Table, before: Position | None) -> Position | None:
    """Return the position after a page, or `before` if that is further, because the page was read again."""
    if not len(deltas):
        return before
    last = last_position(deltas, "arrival")
    return last if before is None else max(last, before)


def _continued_progress(found: FlowProgress | None, row_filter: RowFilter) -> FlowProgress:
    """Return the progress in the mark; that of a new flow if there is no mark, or the filter has changed."""
    return found if found is not None and found.row_filter == row_filter else FlowProgress(row_filter)
