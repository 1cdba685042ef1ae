"""In-memory landing and in-process polls, for tests of connectors.

`diff_page` is the reference implementation of the poll's diff. The pipeline computes the same diff in Spark
(`lakehouse.landing`); `tests/property/test_landed_files.py` holds both equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from lakesync.connectors.polling import (
    MAX_DELETED_SHARE,
    MEMORY_BUDGET_BYTES,
    CensusComparison,
    PollReport,
    SeenRows,
    TableReport,
    census_pages,
)
from lakesync.connectors.source import Census, Cursor, Page, Source, SourceRow, Table, changed_columns
from lakesync.model.errors import LakeSyncError
from lakesync.model.types import Op

KnownRows = dict[str, Mapping[str, Any]]
"""The rows of one table as they landed last: columns by row id."""


class RowChange(NamedTuple):
    """One row's change: all columns of a new row, the differing ones of a known row, none of a deleted row."""

    op: Op
    row_id: str
    columns: Mapping[str, Any]


def diff_page(known: KnownRows, page: Page, identity: str | None = None) -> list[RowChange]:
    """Return the changes of a page, and apply them to `known`.

    A row that the page returns unchanged yields nothing.

    Args:
        known: the rows before; updated.
        page: the page.
        identity: the column by which a row replaces another, as in `Table`.
    """
    changes: list[RowChange] = []
    for row in page.rows:
        changes += _row(known, row.row_id, row.columns)
    brought = {row.row_id for row in page.rows}
    for row_id in sorted(_replaced(known, page, identity, brought) | (set(page.deleted) & known.keys()) - brought):
        del known[row_id]
        changes.append(RowChange("DELETE", row_id, {}))
    return changes


def _row(known: KnownRows, row_id: str, columns: Mapping[str, Any]) -> Iterable[RowChange]:
    before = known.get(row_id)
    known[row_id] = columns
    if before is None:
        yield RowChange("INSERT", row_id, columns)
        return
    if differing := changed_columns(before, columns):
        yield RowChange("UPDATE", row_id, differing)


def _replaced(known: KnownRows, page: Page, identity: str | None, brought: set[str]) -> set[str]:
    whole = set(page.whole)
    if identity is not None:
        whole |= {(identity, row.columns[identity]) for row in page.rows}
    columns = {column for column, _ in whole}
    return {
        row_id
        for row_id, row in known.items()
        if row_id not in brought and any((column, row.get(column)) in whole for column in columns)
    }


class MemoryLanding:
    """Compares every page with the known rows as the pipeline does, and skips rows that were just seen."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.rows: dict[str, KnownRows] = {table.name: {} for table in tables}
        self.changes: list[tuple[str, RowChange]] = []
        """What would have been pushed, with its table."""
        self.landings = 0
        self._identity = {table.name: table.identity for table in tables}
        self._cursors: dict[str, Cursor] = {}
        self._seen = {table.name: SeenRows() for table in tables}

    def cursor(self, table: str) -> Cursor | None:
        """Return the cursor of the last page that landed."""
        return self._cursors.get(table)

    def land(self, pages: Sequence[Page]) -> None:
        """Land pages, and record their changes."""
        self.landings += 1
        for brought in pages:
            page = self._seen[brought.table].drop_unchanged(brought, self._identity[brought.table])
            found = diff_page(self.rows[page.table], page, self._identity[page.table])
            self.changes += [(page.table, change) for change in found]
            if page.cursor is not None:
                self._cursors[page.table] = page.cursor

    def compare(self, table: str, census: Census) -> CensusComparison:
        """Compare a census with the known rows."""
        there = {value for piece in census.values for value in piece}
        rows = self.rows[table]
        if census.column is None:
            self._seen[table].forget(there - rows.keys())
        absent = [
            SourceRow(row_id, columns)
            for row_id, columns in rows.items()
            if (row_id if census.column is None else columns[census.column]) not in there
        ]
        return CensusComparison(len(rows), absent, sorted(there - rows.keys()) if census.column is None else [])


_encoded = msgspec.json.Encoder(enc_hook=str).encode


class Landing(Protocol):
    """Where a connector's pages land."""

    def cursor(self, table: str) -> Cursor | None:
        """Return a table's cursor: that of the last page that landed."""

    def land(self, pages: Sequence[Page]) -> None:
        """Store pages of any tables, and each table's last cursor, in one commit."""

    def compare(self, table: str, census: Census) -> CensusComparison:
        """Compare a census with the known rows."""


def poll(
    source: Source,
    landing: Landing,
    *,
    census: bool | Collection[str] = False,
    budget_bytes: int = MEMORY_BUDGET_BYTES,
    deleted_share: float = MAX_DELETED_SHARE,
    clock: Callable[[], float] = time.monotonic,
) -> PollReport:
    """Poll a source into a landing in this process. A failing table does not affect the others.

    The pipeline polls in Spark tasks instead: `lakehouse.landing.landings`.

    Args:
        source: the source.
        landing: where its pages land.
        census: whether to take a census, or of which tables.
        budget_bytes: bytes of rows held in memory over all tables; one more page may be held.
        deleted_share: share of a table's rows that a census may delete.
        clock: seconds, for the report.
    """
    begun, report, held = clock(), PollReport(), _PageBuffer(landing, budget_bytes)
    for table in source.tables:
        done = TableReport(table.name, cursor=landing.cursor(table.name))
        report.tables.append(done)
        try:
            for page in source.changes(table.name, done.cursor):  # what was read before it fails is good, and lands
                done.pages += 1
                held.add(page, done)
            if table.counted or (census if isinstance(census, bool) else table.name in census):
                done.counted = True
                held.land()
                for page in census_pages(source, table.name, landing.compare, deleted_share):
                    held.add(page, done)
        except LakeSyncError as error:
            done.error = done.error or error
    with suppress(LakeSyncError):  # each table whose pages did not land has it
        held.land()
    report.usage = source.usage
    report.seconds = clock() - begun
    return report


class _PageBuffer:
    """Pages that were read and have not landed yet, so that a small poll is one landing."""

    def __init__(self, landing: Landing, budget_bytes: int) -> None:
        self._landing = landing
        self._budget = budget_bytes
        self._size = 0
        self._pages: list[tuple[Page, TableReport]] = []

    def add(self, page: Page, done: TableReport) -> None:
        """Buffer a page, and land the buffer if it is full."""
        self._pages.append((page, done))
        self._size += len(_encoded([row.columns for row in page.rows]))
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
            for _, done in pages:
                done.error = done.error or error
            raise
        for page, done in pages:
            done.cursor = page.cursor or done.cursor
            done.rows += len(page.rows)
            done.deleted += len(page.deleted)
        for done in {done.table: done for _, done in pages}.values():
            done.landings += 1
