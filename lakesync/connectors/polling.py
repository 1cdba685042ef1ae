"""What the polls of all connector types share: their settings, their reports, and the census.

A poll reads what has changed at a source, an external system, since a cursor, and writes it to the lake in one or more
commits, its *landings*. A *census* lists all ids that a source has. It finds rows that were added or deleted although
the source reported no change. The pipeline's poll tasks (`lakehouse.landing`) and `lakesync.testing.landing` call this
module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from lakesync.connectors.base import Census, Cursor, Page, Source, SourceRow, Usage
from lakesync.model.errors import CensusError, LakeSyncError

MEMORY_BUDGET_BYTES = 16 << 20
"""Default bytes of JSON that a poll keeps in memory before it lands them."""

MAX_DELETED_SHARE = 0.2
"""Default share of a table's known rows that a census may delete."""
_ALWAYS_DELETABLE_ROWS = 20
"""A census may delete this many rows of a table, even if they are more than the allowed share: of a small table, a few
rows are a large share."""


class CensusComparison(NamedTuple):
    """The known rows of a table compared with a census."""

    known: int
    """Number of known rows."""
    absent: Sequence[SourceRow]
    """Known rows that are not in the census."""
    unknown: Sequence[str]
    """Row ids that are only in the census; empty if the census lists another column."""


Compare = Callable[[str, Census], CensusComparison]
"""Compares a census with the known rows of a table, whose name is the first argument."""


@dataclass
class TableReport:
    """A poll's result for one table."""

    table: str
    pages: int = 0
    """Pages read."""
    rows: int = 0
    """Rows read."""
    deleted: int = 0
    """Rows reported as deleted."""
    landings: int = 0
    """Number of commits of rows to the lake."""
    cursor: Cursor | None = None
    """The cursor after the poll."""
    census_taken: bool = False
    """Whether a census was begun, because one was due. An error may have ended it."""
    error: LakeSyncError | None = None
    """Why the table was not read completely. What landed before stays; the next poll continues there."""


@dataclass
class PollReport:
    """A poll's result."""

    tables: list[TableReport] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(0))
    seconds: float = 0.0

    @property
    def error(self) -> LakeSyncError | None:
        """The error of the first table that has one."""
        return next((each.error for each in self.tables if each.error is not None), None)


def census_pages(source: Source, table: str, compare: Compare, deleted_share: float) -> Iterator[Page]:
    """Yield pages for the differences that a census finds: rows that are new at the source, then deleted ones.

    Args:
        source: the source to list.
        table: one of its tables.
        compare: compares the census with the known rows.
        deleted_share: the share of the known rows, 0 to 1, that may be deleted.

    Raises:
        CensusError: more rows would be deleted; no row is.
        LakeSyncError: as the source's methods.
    """
    census = source.census(table)
    if census is None:
        return
    comparison = compare(table, census)
    if comparison.unknown:
        yield from source.read(table, comparison.unknown)
    deleted = sorted(source.find_deleted(table, comparison.absent)) if comparison.absent else []
    if len(deleted) > max(_ALWAYS_DELETABLE_ROWS, comparison.known * deleted_share):
        raise CensusError(
            f"the census of {table} would delete {len(deleted)} of {comparison.known} rows, more than "
            f"{deleted_share:.0%}: if they are really deleted at the source, raise deletedShare of its ingest once; "
            "nothing was deleted"
        )
    if deleted:
        yield Page(table, [], deleted=deleted)


class IngestSettings(msgspec.Struct, frozen=True, rename="camel"):
    """The `ingest` settings that all connector types share."""

    interval_ms: int = 10_000
    """Milliseconds between the starts of two polls."""
    chunk_size: int = 500
    """Deltas per push."""
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES
    """Bytes of rows that a poll keeps in memory. A long read is written to the lake in parts of four times as many."""
    max_calls: int | None = None
    """API calls of all tasks of a poll, including retries; None for no limit."""
    census_interval_ms: int = 86_400_000
    """Milliseconds between two censuses."""
    deleted_share: float = MAX_DELETED_SHARE
    """Share of a table's rows, 0 to 1, that a census may delete."""

    @classmethod
    def of(cls, ingest: Mapping[str, Any]) -> IngestSettings:
        """Parse the shared settings. Settings of one type only, such as `tables`, are ignored.

        Args:
            ingest: the connector's `ingest`, which the registry of connector types has validated.
        """
        return msgspec.convert(ingest, cls)
