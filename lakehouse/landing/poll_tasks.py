"""The Spark tasks of a poll: each reads its part of a source's tables, and returns the rows for the table `landing`.

A source is a connector's external system, for example a Jira site, whose rows go to a gateway, an app's stream of
changes. A poll reads its changes since a cursor, or takes a census: a list of all ids, which shows which rows were
deleted. The rows of one poll that are then committed together to the lake's table `landing` are a landing. A source
returns rows in pages, each with the cursor after it.

The driver divides a landing among tasks (`PollPlan.parts`), and each task reads one part (`PollPlan.read`). Besides the
rows, it returns one row of the kind `report` for each table that it read. `lakehouse.landing.connector_source` calls
both methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lakehouse.landing.known_rows import KnownRows, RowDigests, compare_census
from lakehouse.landing.rows import Constants, LandedRows, ReadPosition, check_rows
from lakehouse.landing.task_messages import Part, TablePlan, TableResult
from lakehouse.task_runner import Failure
from lakesync.connectors.base import (
    Census,
    ConnectorConfig,
    Cursor,
    Page,
    ParallelRead,
    ParallelSource,
    Source,
    TablePart,
)
from lakesync.connectors.polling import CensusComparison, census_pages
from lakesync.connectors.seen_rows import SeenRows
from lakesync.model.errors import AdapterError, ConfigurationError, LakeSyncError

if TYPE_CHECKING:
    import pyarrow as pa

HLCS_PER_LANDING = (2_000 << 16) - 1
"""Number of hlcs that the parts of one landing share. Each row gets an hlc (timestamp) of its own, so the last may be
two seconds in the future, which a gateway accepts as clock drift."""

ROWS_PER_BATCH = 5_000
"""Number of collected rows at which a task returns them to Spark."""

SECONDS_PER_TASK = 60.0
"""Seconds after which a task of a resumable source stops, so that other work, such as a flush, can use its core. The
next poll continues."""

OpenSource = Callable[[ConnectorConfig], Source]
"""Opens the source of a connector. It can be sent to Spark tasks."""


class PollPlan(NamedTuple):
    """What a poll reads for one landing: the changes of tables, or a census. It is sent to the tasks."""

    open_source: OpenSource
    config: ConnectorConfig
    constants: Constants
    """The columns that all rows of the landing have in common."""
    first: int
    """The first hlc to assign."""
    newest: int
    """The newest hlc that has landed."""
    now_ms: int
    """Server wall time in milliseconds since 1970, recorded as the time of a census."""
    tables: tuple[TablePlan, ...]
    """The tables to read; in a census all tables, because it may find rows of each."""
    max_bytes: int
    """Bytes of JSON after which a task of a resumable source stops."""
    max_calls: int | None
    """Number of API calls that all tasks may make together; None for no limit."""
    deleted_share: float | None = None
    """In a census, the share of a table's rows that it may delete; None if this is not a census."""

    def parts(self) -> list[Part]:
        """Divide the poll among tasks. A source that can divide tables is asked for the division of each."""
        if self.deleted_share is not None:
            return [Part()]
        parts = [Part(number) for number in range(len(self.tables))]
        try:
            with closing(self.open_source(self.config)) as source:
                if isinstance(source, ParallelSource):
                    parts = self._divided(source)
        except LakeSyncError as error:
            for part in parts:
                part.failure = Failure.of(error)
        for number, part in enumerate(parts):
            part.number, part.part_count = number, len(parts)
        return parts

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Read a part at the source, and yield rows with the columns of `landing`, reports last."""
        rows = LandedRows(self.constants, self.first + part.number * (HLCS_PER_LANDING // part.part_count))
        if self.deleted_share is not None:
            yield from self._take_censuses(rows, self.deleted_share)
            return
        table = self.tables[part.table]
        result = TableResult(table=table.name, calls=part.calls, failure=part.failure, has_more=part.is_deferred)
        if part.failure is None and not part.is_deferred:
            try:
                if part.piece is not None:
                    result.lands_partially = False
                    yield from _read_piece(part.piece, table.name, rows, result)
                else:
                    yield from self._read_table(table, rows, result, part.part_count)
            except Exception as error:  # a fault of the connector's code must not stop the other tables
                result.failure = _failure(error, table.name)
        if part.position is not None and result.failure is None:
            result.position = self._with_census_time(table, part.position)
        yield from _last_rows(rows, [result], self.first + (part.number + 1) * (HLCS_PER_LANDING // part.part_count))

    def _divided(self, source: Source) -> list[Part]:
        """Return one part for each table, and several for the first table that the source can divide.

        Further tables that the source can divide are deferred to the next landing.
        """
        assert isinstance(source, ParallelSource)
        parts: list[Part] = []
        is_one_divided = False
        calls = 0
        for number, table in enumerate(self.tables):
            table_parts = [Part(number)]
            try:
                division = source.split(table.name, table.position.cursor)  # None: it is read by `changes`
            except LakeSyncError as error:
                table_parts[0].failure = Failure.of(error)
            else:
                if division is not None and is_one_divided:
                    table_parts[0].is_deferred = True
                elif division is not None:
                    is_one_divided, table_parts = True, _divide_table(number, table.position, division)
            calls_so_far = source.usage.calls
            table_parts[0].calls, calls = calls_so_far - calls, calls_so_far
            parts += table_parts
        return parts

    def _read_table(
        self, table: TablePlan, rows: LandedRows, result: TableResult, tasks: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a table since its cursor, up to the end or to a limit of this landing.

        Args:
            table: the table.
            rows: collects the rows.
            result: the table's report, which is updated.
            tasks: number of tasks that share the limit of API calls.
        """
        position = table.position
        max_calls = None if self.max_calls is None else max(1, self.max_calls // tasks)
        known = RowDigests(KnownRows(table.landed, self.newest)) if table.lands_only_changes else None
        limits = _TaskLimits(position.cursor, self.max_bytes, max_calls)
        with closing(self.open_source(self.config)) as source:
            resumable = getattr(source, "resumable", False)  # whether the next poll can continue from any page's cursor
            try:
                for page in source.changes(table.name, position.cursor):
                    _check_table(page, table.name)
                    check_rows(page)  # before `drop_unchanged`, which remembers the rows as landed
                    limits.begin_page(page, rows.bytes)
                    changed = position.seen.drop_unchanged(page, table.identity)
                    if known is not None and changed.rows:
                        changed = known.drop_unchanged(changed)
                    _add(rows, changed, result)
                    result.count_page(page)
                    if page.cursor is not None:
                        position = result.position = msgspec.structs.replace(position, cursor=dict(page.cursor))
                    if rows.count >= ROWS_PER_BATCH:
                        yield rows.take()
                    if resumable and page.cursor is not None and limits.are_reached(rows.bytes, source.usage.calls):
                        result.has_more = True
                        break
            finally:
                result.add_usage(source.usage)
                # rows that land are in `position.seen`, so the position must land with them, even if the cursor is old
                is_changed = result.has_rows_to_land or (
                    result.position is not None and result.position.cursor != table.position.cursor
                )
                result.position = position if is_changed else None
        if not result.has_more and table.records_census:
            result.position = self._with_census_time(table, position)

    def _take_censuses(self, rows: LandedRows, deleted_share: float) -> Iterator[pa.RecordBatch]:
        """Take a census of each table that is due for one, and yield the rows that it adds or deletes."""
        positions = {table.name: table.position for table in self.tables}
        results = {table.name: TableResult(table=table.name) for table in self.tables}
        first_result = results[self.tables[0].name]
        try:
            with closing(self.open_source(self.config)) as source:
                try:
                    for table in self.tables:
                        if table.records_census:
                            yield from self._take_census(source, table, rows, positions, results, deleted_share)
                finally:
                    first_result.add_usage(source.usage)  # the calls are counted once, for all tables
        except LakeSyncError as error:  # the source could not be opened
            for table in self.tables:
                results[table.name].failure = Failure.of(error)
        for table in self.tables:
            result = results[table.name]
            # after an error that a retry cannot mend, the next census is as late as after a success
            if table.records_census and (result.failure is None or not result.failure.error().retryable):
                result.position = self._with_census_time(table, positions[table.name])
            elif result.has_rows_to_land:
                result.position = positions[table.name]  # its digests of seen rows have changed
        yield from _last_rows(rows, list(results.values()), self.first + HLCS_PER_LANDING)

    def _take_census(
        self,
        source: Source,
        table: TablePlan,
        rows: LandedRows,
        positions: dict[str, ReadPosition],
        results: dict[str, TableResult],
        deleted_share: float,
    ) -> Iterator[pa.RecordBatch]:
        """Take a census of one table, and yield the rows that it adds or deletes, which may be of any table.

        Args:
            source: the opened source.
            table: the table.
            rows: collects the rows.
            positions: table → its read position, whose digests of seen rows are updated.
            results: table → its report, which is updated.
            deleted_share: the share of the table's rows that the census may delete.
        """
        identities = {each.name: each.identity for each in self.tables}

        # called by `census_pages` with the ids that the source has
        def compare(_: str, census: Census) -> CensusComparison:
            comparison = compare_census(KnownRows(table.landed, self.newest), census)
            # the lake lacks the unknown rows, so they must not count as unchanged when they are read
            table.position.seen.forget(comparison.unknown)
            return comparison

        try:
            for page in census_pages(source, table.name, compare, deleted_share):
                if page.table not in positions:
                    _check_table(page, table.name)
                check_rows(page)
                changed = positions[page.table].seen.drop_unchanged(page, identities[page.table])
                _add(rows, changed, results[page.table])
                results[table.name].count_page(page)
                if rows.count >= ROWS_PER_BATCH:
                    yield rows.take()
        except Exception as error:  # a fault of the connector's code must not stop the other tables
            results[table.name].failure = _failure(error, table.name)

    def _with_census_time(self, table: TablePlan, position: ReadPosition) -> ReadPosition:
        """Return a read position with the time of this poll as that of the last census, if the table records it."""
        return msgspec.structs.replace(position, census_ms=self.now_ms) if table.records_census else position


class _TaskLimits:
    """The limits of bytes, calls and seconds at which a task of a resumable source stops.

    No limit counts before a page has moved the cursor: a landing that stopped earlier would make no progress, because
    the next one would read the same pages again. Bytes count from that page.
    """

    def __init__(self, cursor: Cursor | None, max_bytes: int, max_calls: int | None) -> None:
        """Start to measure the time of the task.

        Args:
            cursor: the cursor from which the task reads.
            max_bytes: the most bytes of JSON, about.
            max_calls: the most API calls; None for no limit.
        """
        self._cursor = cursor
        self._max_bytes = max_bytes
        self._max_calls = max_calls
        self._deadline = time.monotonic() + SECONDS_PER_TASK
        self._bytes_before: int | None = None
        """Bytes of the pages before the first one that has moved the cursor; None until that page is read."""

    def begin_page(self, page: Page, bytes_before: int) -> None:
        """Record a page, before its rows are added.

        Args:
            page: the page.
            bytes_before: bytes of the rows of earlier pages.
        """
        if self._bytes_before is None and page.cursor is not None and page.cursor != self._cursor:
            self._bytes_before = bytes_before

    def are_reached(self, bytes_read: int, calls: int) -> bool:
        """Return whether the task stops after a page.

        Args:
            bytes_read: bytes of all rows, those of the page included.
            calls: the API calls made so far.
        """
        if self._bytes_before is None:
            return False
        are_calls_spent = self._max_calls is not None and calls >= self._max_calls
        is_full = bytes_read - self._bytes_before >= self._max_bytes
        return are_calls_spent or is_full or time.monotonic() > self._deadline


def _divide_table(number: int, position: ReadPosition, division: ParallelRead) -> list[Part]:
    """Return a part for each piece of a table. The last one reports the read position."""
    parts = [Part(number, piece) for piece in division.parts]
    parts[-1].position = msgspec.structs.replace(position, cursor=dict(division.cursor), seen=SeenRows())
    return parts


def _read_piece(piece: TablePart, table: str, rows: LandedRows, result: TableResult) -> Iterator[pa.RecordBatch]:
    """Read one piece of a divided table, and yield its landed rows in batches."""
    result.pages = 1
    for piece_rows in piece.pages():
        page = Page(table, piece_rows)
        check_rows(page)
        result.rows += len(piece_rows)
        _add(rows, page, result)
        if rows.count >= ROWS_PER_BATCH:
            yield rows.take()


def _add(rows: LandedRows, page: Page, result: TableResult) -> None:
    """Add a page to the landed rows, and record whether anything landed.

    `page.complete` has claims: the page has all rows with a value in a column, so other rows with it are deleted.
    """
    result.has_rows_to_land = result.has_rows_to_land or bool(page.rows or page.deleted or page.complete)
    rows.add(page)


def _failure(error: Exception, table: str) -> Failure:
    """Return the failure of a table; a connector should raise only LakeSyncErrors, but its code may have faults."""
    if not isinstance(error, LakeSyncError):
        error = AdapterError(f"reading {table} failed unexpectedly: {type(error).__name__}: {error}")
    return Failure.of(error)


def _check_table(page: Page, table: str) -> None:
    """Check that a page is of the table that was asked for."""
    if page.table != table:
        raise ConfigurationError(f"the connector returned a page of {page.table!r} while its table {table!r} was read")


def _last_rows(rows: LandedRows, results: Sequence[TableResult], end: int) -> Iterator[pa.RecordBatch]:
    """Yield the last rows of a task: those not passed on yet, read positions, and reports.

    Args:
        rows: the task's rows.
        results: what the task read of each table.
        end: the hlc before which the task's hlcs must end.

    Raises:
        ValueError: the task has more rows than hlcs.
    """
    for result in results:
        if result.position is not None:
            rows.position(result.table, result.position)
            result.has_rows_to_land = True
    if rows.newest >= end:
        raise ValueError(
            f"a part of {results[0].table} has more than {HLCS_PER_LANDING} rows: give it a whole-number row id, by "
            "which it can be divided"
        )
    for result in results:
        rows.report(result.table, msgspec.json.encode(result).decode())
    yield rows.take()
