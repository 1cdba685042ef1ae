"""What the tasks of a poll do: each reads its part of a source's tables and makes the rows that are to land.

The driver divides the work (`PollWork.parts`), a task reads one part (`PollWork.read`). Besides the rows that land it
makes one row of the kind `report` for each table that it read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql.datasource import InputPartition

from lakehouse.failures import Failure
from lakehouse.landing.comparing import Digests, compared
from lakehouse.landing.files import Landed
from lakehouse.landing.folding import Folding
from lakehouse.landing.rows import Constants, LandedRows, Place
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.polling import CensusComparison, census_pages
from lakesync.connectors.seen_rows import SeenRows
from lakesync.connectors.source import Census, Page, ParallelRead, ParallelSource, Source, TablePart, Usage
from lakesync.model.errors import ConfigurationError, LakeSyncError

if TYPE_CHECKING:
    import pyarrow as pa

STAMPS = (2_000 << 16) - 1
"""Stamps that the parts of one landing share: two seconds of the clock, which a gateway lets them be ahead."""

ROWS_A_BATCH = 5_000

SECONDS_A_TASK = 60.0
"""After which a task of a resumable source stops: others, such as a flush, wait for its core meanwhile."""

OpenSource = Callable[[ConnectorConfig], Source]


class TableWork(NamedTuple):
    """A table that is to be read, and how far it is."""

    name: str
    identity: str | None
    whole: bool
    """It is read whole at each poll, and only what differs from the known rows lands."""
    place: Place
    landed: Landed
    counted: bool
    """It is to be noted that its rows were counted: in a census, or because they are all read for the first time."""


class TableResult(msgspec.Struct, kw_only=True):
    """What a task read of one table."""

    table: str
    pages: int = 0
    rows: int = 0
    deleted: int = 0
    place: Place | None = None
    """Where the table goes on, if it is no longer as it was."""
    landing: bool = False
    """There is something to land."""
    newest: int = 0
    """The highest stamp of the task."""
    more: bool = False
    """The task stopped in the middle, and reading goes on behind the last page's cursor."""
    whole: bool = True
    """What was read before an error is good by itself. A part of a table that is read in parts is not."""
    calls: int = 0
    left: int | None = None
    limit: int | None = None
    failure: Failure | None = None


class Part(InputPartition):
    """What one task reads: a table, a piece of one, or in a census all of them."""

    def __init__(self, table: int = 0, piece: TablePart | None = None, place: Place | None = None) -> None:
        """Args: table: its number; piece: of it, alone; place: of the table once all its pieces have landed."""
        super().__init__(table)
        self.table = table
        self.piece = piece
        self.place = place
        self.number = 0
        self.of = 1
        self.calls = 0
        """Made when the work was divided."""
        self.deferred = False
        """Nothing is read now; the table is due again after this landing."""
        self.failure: Failure | None = None
        """Why the table could not be divided."""


class PollWork(NamedTuple):
    """The reading of one landing."""

    open_source: OpenSource
    config: ConnectorConfig
    constants: Constants
    first: int
    """The first stamp to give out."""
    newest: int
    """The newest that has landed."""
    now_ms: int
    tables: tuple[TableWork, ...]
    bytes: int
    """JSON that a task of a resumable source lands at once, about."""
    calls: int | None
    """Calls that all tasks may make together."""
    deleted_share: float | None = None
    """Given in a census: the share of a table's rows that it may delete."""

    def parts(self) -> list[Part]:
        """Divide the work among tasks; only a source that can divide a table is asked for anything."""
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
        """Read a part."""
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
        """One part a table, or as many as the source divides one table into; another such table waits."""
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
        """What changed in a table since its cursor, up to the end or to what one landing takes."""
        place = table.place
        share = None if self.calls is None else max(1, self.calls // tasks)
        known = Digests(Folding(table.landed, self.newest)) if table.whole else None
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
                    _add(rows, known.news(fresh) if known is not None and fresh.rows else fresh, result)
                    _note(result, page)
                    if page.cursor is not None:
                        place = result.place = msgspec.structs.replace(place, cursor=dict(page.cursor))
                    if rows.count >= ROWS_A_BATCH:
                        yield rows.taken()
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
        """A census of the tables that are to be counted, one after the other."""
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
        places: dict[str, Place],
        results: dict[str, TableResult],
        deleted_share: float,
    ) -> Iterator[pa.RecordBatch]:
        identities = {each.name: each.identity for each in self.tables}

        def compare(_: str, census: Census) -> CensusComparison:
            found = compared(Folding(table.landed, self.newest), census)
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
                    yield rows.taken()
        except LakeSyncError as error:
            results[table.name].failure = Failure.of(error)

    def _counted(self, table: TableWork, place: Place) -> Place:
        return msgspec.structs.replace(place, counted_ms=self.now_ms) if table.counted else place


def _pieces(number: int, place: Place, whole: ParallelRead) -> list[Part]:
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
            yield rows.taken()


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
    """The places and the reports, last."""
    for result in results:
        if result.place is not None:
            rows.place(result.table, result.place)
            result.landing = True
    if rows.newest >= end:
        raise ValueError(f"a part of {results[0].table} has more than {STAMPS} rows: give it a whole-number row id")
    for result in results:
        result.newest = rows.newest
        rows.report(result.table, msgspec.json.encode(result).decode())
    yield rows.taken()
