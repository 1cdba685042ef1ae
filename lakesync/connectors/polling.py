"""A poll: what changed at a source lands piece by piece, each piece with the place from which to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from lakesync.connectors.source import Census, Cursor, Page, Source, SourceRow, Usage
from lakesync.model.errors import CensusError, LakeSyncError

BUDGET_BYTES = 16 << 20
"""How many bytes of JSON a poll holds before it lands them, unless told otherwise."""

DELETED_SHARE = 0.2
DELETED_ROWS = 20
"""A census may delete so many rows of a table, or this share of them, whichever is more."""

_encoded = msgspec.json.Encoder(enc_hook=str).encode


class Comparison(NamedTuple):
    """What is known of a table beside a census of it."""

    known: int
    """Rows that are known."""
    absent: Sequence[SourceRow]
    """Known rows that the census lacks."""
    unknown: Sequence[str]
    """Row ids that only the census has; none where it counts another column."""


Compare = Callable[[str, Census], Comparison]
"""Sets a census of a table beside the rows that are known."""


class Landing(Protocol):
    """Where a connector's pages land."""

    def cursor(self, table: str) -> Cursor | None:
        """Where reading of a table goes on: the cursor of the last page that landed."""

    def land(self, pages: Sequence[Page]) -> None:
        """Keep pages, of any tables, with the cursor of each table's last that has one, in one commit."""

    def compare(self, table: str, census: Census) -> Comparison:
        """What a census has and is not known, and the other way round."""


@dataclass
class TableReport:
    """What became of one table in one poll."""

    table: str
    pages: int = 0
    rows: int = 0
    deleted: int = 0
    landings: int = 0
    cursor: Cursor | None = None
    counted: bool = False
    """Its rows were counted, or were to be."""
    error: LakeSyncError | None = None
    """Why it was not read to its end; what had landed before it stays, and the next poll goes on from there."""


@dataclass
class PollReport:
    """What became of a poll."""

    tables: list[TableReport] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(0))
    seconds: float = 0.0

    @property
    def error(self) -> LakeSyncError | None:
        """The first table's error, if one has any."""
        return next((each.error for each in self.tables if each.error is not None), None)


def poll(
    source: Source,
    landing: Landing,
    *,
    census: bool | Collection[str] = False,
    budget_bytes: int = BUDGET_BYTES,
    deleted_share: float = DELETED_SHARE,
    clock: Callable[[], float] = time.monotonic,
) -> PollReport:
    """Read what changed at a source into a landing, in this process. A table that fails leaves the others alone.

    The pipeline's polls are reads of Spark, `lakehouse.landing.landings`.

    Args:
        census: whether to look, too, for rows that are gone without a change that tells of it, or in which tables.
        budget_bytes: of rows held in memory, of all tables together; one page more may be held.
        deleted_share: of a table's rows, which a census may delete.
    """
    begun, report, held = clock(), PollReport(), _Held(landing, budget_bytes)
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


class _Held:
    """Pages of any tables that were read and have not landed yet: a poll that brings little is one landing."""

    def __init__(self, landing: Landing, budget_bytes: int) -> None:
        self._landing = landing
        self._budget = budget_bytes
        self._size = 0
        self._pages: list[tuple[Page, TableReport]] = []

    def add(self, page: Page, done: TableReport) -> None:
        """Hold a page, and land what is held where that is too much."""
        self._pages.append((page, done))
        self._size += len(_encoded([row.columns for row in page.rows]))
        if self._size >= self._budget:
            self.land()

    def land(self) -> None:
        """Land what is held.

        Raises:
            LakeSyncError: it did not land; every table of it has this error then.
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


def census_pages(source: Source, table: str, compare: Compare, deleted_share: float) -> Iterator[Page]:
    """What a census of a table finds that no change told of: rows that are new, then those that are gone.

    Args:
        source: that is counted.
        table: of the source.
        compare: sets a census beside the rows that are known.
        deleted_share: of the known rows, which may be deleted.

    Raises:
        CensusError: it would delete more than that.
        LakeSyncError: as the source's methods.
    """
    counted = source.census(table)
    if counted is None:
        return
    found = compare(table, counted)
    if found.unknown:
        yield from source.read(table, found.unknown)
    gone = sorted(source.gone(table, found.absent)) if found.absent else []
    if len(gone) > max(DELETED_ROWS, found.known * deleted_share):
        raise CensusError(
            f"the census of {table} would delete {len(gone)} of {found.known} rows, more than {deleted_share:.0%}: if "
            "they are really gone at the source, allow it once (deletedShare of its ingest); nothing was deleted"
        )
    if gone:
        yield Page(table, [], deleted=gone)
