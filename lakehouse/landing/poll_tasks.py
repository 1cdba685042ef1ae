"""The tasks of a poll: each reads its part of a source's tables and returns the rows to land.

The driver divides the poll (`PollWork.parts`), a task reads one part (`PollWork.read`). Besides the rows to land it
returns one row of the kind `report` for each table that it read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql.datasource import InputPartition

from lakehouse.failures import Failure
from lakehouse.landing.comparing import RowDigests, compare_census
from lakehouse.landing.files import LandedTable
from lakehouse.landing.folding import KnownRows
from lakehouse.landing.rows import Constants, LandedRows, ReadPosition
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.polling import CensusComparison, census_pages
from lakesync.connectors.seen_rows import SeenRows
from lakesync.connectors.source import Census, Page, ParallelRead, ParallelSource, Source, TablePart, Usage
from lakesync.model.errors import ConfigurationError, LakeSyncError

if TYPE_CHECKING:
    import pyarrow as pa

STAMPS = (2_000 << 16) - 1
"""Number of hlcs that the parts of one landing share: two seconds, which a gateway accepts as clock drift."""

ROWS_A_BATCH = 5_000

SECONDS_A_TASK = 60.0
"""Seconds after which a task of a resumable source stops, so that others, such as a flush, get its core."""

OpenSource = Callable[[ConnectorConfig], Source]


class TableWork(NamedTuple):
    """A table to read, with its read position."""

    name: str
    identity: str | None
    whole: bool
    """Whether it is read as a whole at each poll, and only rows that differ from the known ones land."""
    place: ReadPosition
    landed: LandedTable
    counted: bool
    """Whether to record a census: one is taken, or all rows are read for the first time."""


class TableResult(msgspec.Struct, kw_only=True):
    """What a task read of one table."""

    table: str
    pages: int = 0
    rows: int = 0
    deleted: int = 0
    place: ReadPosition | None = None
    """The table's new read position; None if it has not changed."""
    landing: bool = False
    """Whether there are rows to land."""
    newest: int = 0
    """The highest hlc of the task."""
    more: bool = False
    """Whether the task stopped early; reading continues after the last page's cursor."""
    whole: bool = True
    """Whether rows read before an error can land. Those of a part of a divided table cannot."""
    calls: int = 0
    left: int | None = None
    limit: int | None = None
    failure: Failure | None = None


class Part(InputPartition):
    """What one task reads: a table, a part of a divided table, or in a census all tables."""

    def __init__(self, table: int = 0, piece: TablePart | None = None, place: ReadPosition | None = None) -> None:
        """Describe the part.

        Args:
            table: the table's number.
            piece: a part of the table; None: the whole table.
            place: the table's read position once all its parts have landed; None: it does not change by this part.
        """
        super().__init__(table)
        self.table = table
        self.piece = piece
        self.place = place
        self.number = 0
        self.of = 1
        self.calls = 0
        """Calls that were made to divide the poll."""
        self.deferred = False
        """Whether the table is read after this landing instead."""
        self.failure: Failure | None = None
        """The error if the table could not be divided."""


class PollWork(NamedTuple):
    """A poll that makes one landing."""

    open_source: OpenSource
    config: ConnectorConfig
    constants: Constants
    first: int
    """The first hlc to assign."""
    newest: int
    """The newest hlc that has landed."""
    now_ms: int
    tables: tuple[TableWork, ...]
    bytes: int
    """Bytes of JSON that a task of a resumable source lands at once, approximately."""
    calls: int | None
    """Calls to the source that all tasks may make together; None: unlimited."""
    deleted_share: float | None = None
    """In a census, the share of a table's rows that it may delete; None: not a census."""

    def parts(self) -> list[Part]:
        """Divide the poll among tasks. Only sources that can divide tables are called."""
        if self.deleted_share is not None:
            return [Part()]
        found = [Part(number) for number in range(len(self.tables))]
        try:
            with closing(self.open_source(self.config)) as source:
                if isinstance(source, ParallelSource):
                    found = self._divided(source)
        except LakeSyncError as error:
            for part in found:
                part.failure = Failure.of(error)
        for number, part in enumerate(found):
            part.number, part.of = number, len(found)
        return found

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        rows = LandedRows(self.constants, self.first + part.number * (STAMPS // part.of))
        if self.deleted_share is not None:
            yield from self._count(rows, self.deleted_share)
            return
        table = self.tables[part.table]
        result = TableResult(table=table.name, calls=part.calls, failure=part.failure, more=part.deferred)
        if part.failure is None and not part.deferred:
            try:
                if part.piece is not None:
                    result.whole = False
                    yield from _piece(part.piece, table.name, rows, result)
                else:
                    yield from self._table(table, rows, result, part.of)
            except LakeSyncError as error:
                result.failure = Failure.of(error)
        if part.place is not None and result.failure is None:
            result.place = self._counted(table, part.place)
        yield from _ended(rows, [result], self.first + (part.number + 1) * (STAMPS // part.of))

    def _divided(self, source: Source) -> list[Part]:
        """Return one part for each table, and several for one table that the source divides. Other such tables wait."""
        assert isinstance(source, ParallelSource)
        parts: list[Part] = []
        spread = False
        calls = 0
        for number, table in enumerate(self.tables):
            mine = [Part(number)]
            try:
                whole = source.split(table.name, table.place.cursor)
            except LakeSyncError as error:
                mine[0].failure = Failure.of(error)
            else:
                if whole is not None and spread:
                    mine[0].deferred = True
                elif whole is not None:
                    spread, mine = True, _pieces(number, table.place, whole)
            made = source.usage.calls
            mine[0].calls, calls = made - calls, made
            parts += mine
        return parts

    def _table(self, table: TableWork, rows: LandedRows, result: TableResult, tasks: int) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a table since its cursor, up to the end or the limit of one landing."""
        place = table.place
        share = None if self.calls is None else max(1, self.calls // tasks)
        known = RowDigests(KnownRows(table.landed, self.newest)) if table.whole else None
        until = time.monotonic() + SECONDS_A_TASK
        with closing(self.open_source(self.config)) as source:
            resumable = getattr(source, "resumable", False)
            began: int | None = None
            try:
                for page in source.changes(table.name, place.cursor):
                    _check(page, table.name)
                    if began is None and page.cursor is not None and page.cursor != table.place.cursor:
                        began = rows.bytes
                    fresh = place.seen.news(page, table.identity)
                    _add(rows, known.changed(fresh) if known is not None and fresh.rows else fresh, result)
                    _note(result, page)
                    if page.cursor is not None:
                        place = result.place = msgspec.structs.replace(place, cursor=dict(page.cursor))
                    if rows.count >= ROWS_A_BATCH:
                        yield rows.take()
                    if resumable and page.cursor is not None and began is not None:
                        spent = share is not None and source.usage.calls >= share
                        if spent or rows.bytes - began >= self.bytes or time.monotonic() > until:
                            result.more = True
                            break
            finally:
                _use(result, source.usage)
                changed = result.landing or (result.place is not None and result.place.cursor != table.place.cursor)
                result.place = place if changed else None
        if not result.more and table.counted:
            result.place = self._counted(table, place)

    def _count(self, rows: LandedRows, deleted_share: float) -> Iterator[pa.RecordBatch]:
        """Yield the rows that follow from a census of each table that is due for one."""
        places = {table.name: table.place for table in self.tables}
        results = {table.name: TableResult(table=table.name) for table in self.tables}
        first = results[self.tables[0].name]
        try:
            with closing(self.open_source(self.config)) as source:
                try:
                    for table in self.tables:
                        if table.counted:
                            yield from self._count_one(source, table, rows, places, results, deleted_share)
                finally:
                    _use(first, source.usage)
        except LakeSyncError as error:  # the source could not be opened
            for table in self.tables:
                results[table.name].failure = Failure.of(error)
        for table in self.tables:
            result = results[table.name]
            if table.counted and (result.failure is None or not result.failure.error().retryable):
                result.place = self._counted(table, places[table.name])
            elif result.landing:
                result.place = places[table.name]
        yield from _ended(rows, list(results.values()), self.first + STAMPS)

    def _count_one(
        self,
        source: Source,
        table: TableWork,
        rows: LandedRows,
        places: dict[str, ReadPosition],
        results: dict[str, TableResult],
        deleted_share: float,
    ) -> Iterator[pa.RecordBatch]:
        identities = {each.name: each.identity for each in self.tables}

        def compare(_: str, census: Census) -> CensusComparison:
            found = compare_census(KnownRows(table.landed, self.newest), census)
            table.place.seen.forget(found.unknown)
            return found

        try:
            for page in census_pages(source, table.name, compare, deleted_share):
                if page.table not in places:
                    _check(page, table.name)
                fresh = places[page.table].seen.news(page, identities[page.table])
                _add(rows, fresh, results[page.table])
                _note(results[table.name], page)
                if rows.count >= ROWS_A_BATCH:
                    yield rows.take()
        except LakeSyncError as error:
            results[table.name].failure = Failure.of(error)

    def _counted(self, table: TableWork, place: ReadPosition) -> ReadPosition:
        return msgspec.structs.replace(place, counted_ms=self.now_ms) if table.counted else place


def _pieces(number: int, place: ReadPosition, whole: ParallelRead) -> list[Part]:
    parts = [Part(number, piece) for piece in whole.parts]
    parts[-1].place = msgspec.structs.replace(place, cursor=dict(whole.cursor), seen=SeenRows())
    return parts


def _piece(piece: TablePart, table: str, rows: LandedRows, result: TableResult) -> Iterator[pa.RecordBatch]:
    result.pages = 1
    for some in piece.pages():
        page = Page(table, some)
        result.rows += len(some)
        _add(rows, page, result)
        if rows.count >= ROWS_A_BATCH:
            yield rows.take()


def _add(rows: LandedRows, page: Page, result: TableResult) -> None:
    result.landing = result.landing or bool(page.rows or page.deleted or page.whole)
    rows.add(page)


def _note(result: TableResult, page: Page) -> None:
    result.pages += 1
    result.rows += len(page.rows)
    result.deleted += len(page.deleted)


def _use(result: TableResult, usage: Usage) -> None:
    result.calls += usage.calls
    result.left, result.limit = usage.left, usage.limit


def _check(page: Page, table: str) -> None:
    if page.table != table:
        raise ConfigurationError(f"the connector brought a page of {page.table!r} while its {table!r} was read")


def _ended(rows: LandedRows, results: Sequence[TableResult], end: int) -> Iterator[pa.RecordBatch]:
    """Yield the last rows: read positions and reports."""
    for result in results:
        if result.place is not None:
            rows.position(result.table, result.place)
            result.landing = True
    if rows.newest >= end:
        raise ValueError(f"a part of {results[0].table} has more than {STAMPS} rows: give it a whole-number row id")
    for result in results:
        result.newest = rows.newest
        rows.report(result.table, msgspec.json.encode(result).decode())
    yield rows.take()
