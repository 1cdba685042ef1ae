"""Polls of a connector's source in one process, without a lake, for tests of connectors.

A source is an external system that a connector reads. `poll` reads pages of rows from it and passes them to a landing,
the place that stores them: a `MemoryLanding`. The landing compares each page (`diff_page`) with the known rows, which
are the rows as they were last read. Its changes are what the pipeline would push to the gateway, the app's stream of
changes. A *cursor* says up to where a table was read; the next poll starts there.

Two things show which rows were deleted. A page may *claim* to have all rows with some value in a column
(`Page.complete`): other known rows with this value were deleted. A *census* is a list of all ids in a source; known
rows that it lacks were deleted there. The pipeline computes the same in Spark (`lakehouse.landing`);
`tests/property/test_landed_files.py` checks that both are equal.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from lakesync.connectors.base import Census, Cursor, Page, Source, SourceRow, Table, changed_columns
from lakesync.connectors.polling import (
    MAX_DELETED_SHARE,
    MEMORY_BUDGET_BYTES,
    CensusComparison,
    PollReport,
    TableReport,
    census_pages,
)
from lakesync.connectors.seen_rows import SeenRows
from lakesync.model.errors import LakeSyncError
from lakesync.model.types import Op

KnownRows = dict[str, Mapping[str, Any]]
"""Row id → columns, of all rows of one table as they were last read."""


class RowChange(NamedTuple):
    """One row's change: all columns of a new row, the differing ones of a known row, none of a deleted row."""

    op: Op
    row_id: str
    columns: Mapping[str, Any]


def diff_page(known: KnownRows, page: Page, identity: str | None = None) -> list[RowChange]:
    """Return the changes in a page, and apply them to `known`. A row that has not changed yields no change.

    Args:
        known: the rows before the page; they are updated.
        page: the page.
        identity: a column that identifies a row even when its row id changes; None if no column does (see `Table`).
    """
    changes: list[RowChange] = []
    for row in page.rows:
        changes += _row_changes(known, row.row_id, row.columns)
    in_page = {row.row_id for row in page.rows}
    reported_deleted = (set(page.deleted) & known.keys()) - in_page
    for row_id in sorted(_missing(known, page, identity, in_page) | reported_deleted):
        del known[row_id]
        changes.append(RowChange("DELETE", row_id, {}))
    return changes


class MemoryLanding:
    """Stores pages in memory. It compares each one with the known rows, as the pipeline does. Tests may subclass it."""

    def __init__(self, tables: Sequence[Table]) -> None:
        """Create an empty landing.

        Args:
            tables: the source's tables.
        """
        self.rows: dict[str, KnownRows] = {table.name: {} for table in tables}
        """Table → its known rows."""
        self.changes: list[tuple[str, RowChange]] = []
        """`(table, change)` for each change that the pipeline would push, in order."""
        self.landings = 0
        """Number of calls of `land`."""
        self._identity = {table.name: table.identity for table in tables}
        self._cursors: dict[str, Cursor] = {}
        self._seen = {table.name: SeenRows() for table in tables}
        """By table: rows and claims of earlier pages, of which an unchanged repeat does not land."""

    def cursor(self, table: str) -> Cursor | None:
        """Return the cursor of the last page that landed, from which the next poll continues; None before the first."""
        return self._cursors.get(table)

    def land(self, pages: Sequence[Page]) -> None:
        """Land pages, and record their changes."""
        self.landings += 1
        for whole_page in pages:
            page = self._seen[whole_page.table].drop_unchanged(whole_page, self._identity[whole_page.table])
            changes = diff_page(self.rows[page.table], page, self._identity[page.table])
            self.changes += [(page.table, change) for change in changes]
            if page.cursor is not None:
                self._cursors[page.table] = page.cursor

    def compare(self, table: str, census: Census) -> CensusComparison:
        """Compare a census with the known rows.

        Args:
            table: the table's name.
            census: the census: values of a column, or of the row id if its `column` is None.
        """
        listed = {value for piece in census.values for value in piece}
        rows = self.rows[table]
        if census.column is None:  # the census lists row ids; it may have some that were never read, or deleted since
            self._seen[table].forget(listed - rows.keys())
        absent = [
            SourceRow(row_id, columns)
            for row_id, columns in rows.items()
            if (row_id if census.column is None else columns[census.column]) not in listed
        ]
        unknown = sorted(listed - rows.keys()) if census.column is None else []
        return CensusComparison(len(rows), absent, unknown)


_encode = msgspec.json.Encoder(enc_hook=str).encode
"""Encodes rows as JSON, to measure their size."""


def poll(
    source: Source,
    landing: MemoryLanding,
    *,
    census: bool | Collection[str] = False,
    budget_bytes: int = MEMORY_BUDGET_BYTES,
    deleted_share: float = MAX_DELETED_SHARE,
) -> PollReport:
    """Poll a source into a landing in this process. A failing table does not affect the others.

    The pipeline polls in Spark tasks instead: `lakehouse.landing.polls`.

    Args:
        source: the source.
        landing: stores the pages.
        census: whether to take a census of all tables, or the names of the tables to take one of.
        budget_bytes: bytes of rows in memory, over all tables, from which they are stored.
        deleted_share: share of a table's rows that a census may delete; a census that would delete more fails.

    Returns:
        The report. It has the errors of tables; no error is raised.
    """
    started, report, buffer = time.monotonic(), PollReport(), _PageBuffer(landing, budget_bytes)
    for table in source.tables:
        table_report = TableReport(table.name, cursor=landing.cursor(table.name))
        report.tables.append(table_report)
        try:
            # if a page fails, the pages before it still land
            for page in source.changes(table.name, table_report.cursor):
                table_report.pages += 1
                buffer.add(page, table_report)
            if table.needs_census or (census if isinstance(census, bool) else table.name in census):
                table_report.census_taken = True
                buffer.land()
                for page in census_pages(source, table.name, landing.compare, deleted_share):
                    buffer.add(page, table_report)
        except LakeSyncError as error:
            table_report.error = table_report.error or error
    with suppress(LakeSyncError):  # the reports of the tables in the buffer have the error
        buffer.land()
    report.usage = source.usage
    report.seconds = time.monotonic() - started
    return report


def _row_changes(known: KnownRows, row_id: str, columns: Mapping[str, Any]) -> Iterable[RowChange]:
    """Yield the change of a row, if it has changed, and store its columns in `known`."""
    before = known.get(row_id)
    known[row_id] = columns
    if before is None:
        yield RowChange("INSERT", row_id, columns)
        return
    if differing := changed_columns(before, columns):
        yield RowChange("UPDATE", row_id, differing)


def _missing(known: KnownRows, page: Page, identity: str | None, in_page: set[str]) -> set[str]:
    """Return the ids of known rows that would be in the page if they still existed.

    They have a value that the page claims, or the identity of a row that is in the page under another row id.
    """
    claims = set(page.complete)
    if identity is not None:
        claims |= {(identity, row.columns[identity]) for row in page.rows}
    columns = {column for column, _ in claims}
    return {
        row_id
        for row_id, row in known.items()
        if row_id not in in_page and any((column, row.get(column)) in claims for column in columns)
    }


class _PageBuffer:
    """Collects pages up to a size in bytes, so that a small poll needs only one landing."""

    def __init__(self, landing: MemoryLanding, budget_bytes: int) -> None:
        self._landing = landing
        self._budget = budget_bytes
        self._size = 0
        self._pages: list[tuple[Page, TableReport]] = []

    def add(self, page: Page, report: TableReport) -> None:
        """Buffer a page and the report of its table, and land the buffer if it is full."""
        self._pages.append((page, report))
        self._size += len(_encode([row.columns for row in page.rows]))
        if self._size >= self._budget:
            self.land()

    def land(self) -> None:
        """Land the buffered pages.

        Raises:
            LakeSyncError: the landing failed; every table in the buffer gets this error.
        """
        pages, self._pages, self._size = self._pages, [], 0
        if not pages:
            return
        try:
            self._landing.land([page for page, _ in pages])
        except LakeSyncError as error:
            for _, report in pages:
                report.error = report.error or error
            raise
        for page, report in pages:
            report.cursor = page.cursor or report.cursor
            report.rows += len(page.rows)
            report.deleted += len(page.deleted)
        for report in {report.table: report for _, report in pages}.values():
            report.landings += 1
