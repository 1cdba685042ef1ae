"""Flows: incremental copies of new deltas from one backend to another, for rows that match a filter.

`[flows.NAME]` in `lakesync.toml` declares a flow; `lakehouse.backends.flows` runs it in a Spark task. A *delta* is
a change of one row. `flow_pages` reads the deltas to copy from the source. A row that no longer matches is hidden in
the *destination table* (the target's table of current rows). A flow's *mark*, a text at the target, says up to which
position of the source it has copied. Old deltas of the target may be in *cold tiers*, backends to which they were
moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from lakesync.adapters.arrow import table_checksum
from lakesync.adapters.arrow_access import missing_deltas
from lakesync.adapters.base import ContentTransform, DatabaseAdapter, StateWriter
from lakesync.adapters.composite import cold_tier_contents
from lakesync.adapters.deltas import PAGE_DELTAS, BatchChecksum, DeltaQuery, RowContent, RowId
from lakesync.adapters.transfer.flow_pages import FlowProgress, RowFilter, filtered_pages, new_pages
from lakesync.adapters.transfer.follower import count_by_day
from lakesync.adapters.transfer.loads import WrittenStreams
from lakesync.adapters.transfer.progress import ProgressInMark, require_marks
from lakesync.adapters.transfer.table_rewrites import columns_of_tables, rewrite_outdated_tables
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import IntegrityError, Rejection
from lakesync.model.schema import TableSchema


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
    """Of a flow into the lake (`lakehouse.backends.flows`): deltas that a gateway rejected. They were not copied."""
    suspended: tuple[str, ...] = ()
    """The suspended destination tables. `lakehouse.backends.flows` adds a last step without deltas for them."""


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
    read_written: Callable[[], WrittenStreams] = WrittenStreams,
) -> Iterator[FlowStep]:
    """Copy what arrived at the source since the flow's mark: a page at each step of the iteration.

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
        read_written: returns how far followers and other flows have written the source, as `written_by` does.

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
        stored_columns = progress.row_columns if progress.deltas else None
        rewrite_outdated_tables(target, name, schemas, row_columns, stored_columns, transform, row_filter, cold)
    progress = replace(progress, row_columns=row_columns)
    # so that no run without deltas writes them again, and that an erasure can change the text of the first run's mark
    if in_mark is None or in_mark.row_columns != row_columns:
        mark.write(progress)
        in_mark = progress
    stored_rows = partial(_stored_rows, (target, *cold))
    pages = new_pages(source, progress, row_filter, stored_rows, page, until, read_written)
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
    read_written: Callable[[], WrittenStreams] = WrittenStreams,
) -> Iterator[FlowStep]:
    """Copy a range of arrivals again, for a backfill of chosen days: a page at each step of the iteration.

    The flow's mark keeps its value. A database recognises each delta by its id and rewrites the rows. An object store
    does not, so it receives only deltas that none of its objects contains.

    Args:
        source: the backend to read.
        target: the backend to write.
        name: the flow's name, and the name of its mark.
        row_filter: the rows to copy.
        schemas: the target's destination tables.
        arrivals: the first and the last arrival, inclusive.
        page: deltas read at once.
        cold: the cold tiers with older deltas of the target's rows.
        read_written: as in `run_flow`.

    Raises:
        AdapterError: as `run_flow`, or a follower's load was in progress at the source, so that deltas were left out.
        IntegrityError, ConfigurationError: as `run_flow`.
    """
    before = read_written()
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
    before.require_no_load_until(read_written())


def _batch_id(name: str, checksum: BatchChecksum) -> str:
    """Return a batch id by the content, so that an interrupted page is written again as the same batch."""
    return f"{name.replace('/', '.')}.{checksum.deltas}-{checksum.id_sum:016x}"


def _stored_rows(tiers: Sequence[DatabaseAdapter], gateway: str, table: str, rows: Sequence[str]) -> set[str]:
    """Return those row ids of which a tier stores deltas."""
    return {row for tier in tiers for row in tier.get_latest_state(gateway, table, rows)}


def _continued_progress(found: FlowProgress | None, row_filter: RowFilter) -> FlowProgress:
    """Return the progress in the mark; that of a new flow if there is no mark, or the filter has changed."""
    return found if found is not None and found.row_filter == row_filter else FlowProgress(row_filter)
