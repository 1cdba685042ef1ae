"""What the driver and the Spark tasks of a poll send each other: the tables and parts to read, and the results.

A poll reads the changes of tables at a source, a connector's external system, or takes a census: a list of all ids,
which shows which rows were deleted. The rows that it commits to the lake together are a landing. The driver
(`lakehouse.landing.lake_landing`) makes a `TablePlan` for each table. `PollPlan` in `lakehouse.landing.poll_tasks`
divides them into parts. A task reads one `Part`, and returns a `TableResult` for each of its tables to the driver.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from pyspark.sql.datasource import InputPartition

from lakehouse.landing.rows import LandedTable, ReadPosition
from lakehouse.task_runner import Failure
from lakesync.connectors.base import Page, TablePart, Usage


class TablePlan(NamedTuple):
    """A table to read, with its read position."""

    name: str
    identity: str | None
    """A column that identifies a row even when its row id changes; None if the table has no such column."""
    lands_only_changes: bool
    """Whether rows land only if they differ from the known ones, because the source may return all rows in every
    poll."""
    position: ReadPosition
    """Where to continue: the source's cursor, and in `seen` digests of rows that may be returned again after it."""
    landed: LandedTable
    """The files from which the known rows, those that earlier polls have read, are computed."""
    records_census: bool
    """Whether to record the time of a census: one is taken, or all rows are read for the first time."""


class TableResult(msgspec.Struct, kw_only=True):
    """What a task read of one table."""

    table: str
    pages: int = 0
    """Number of pages that the source returned; 1 for a piece of a divided table."""
    rows: int = 0
    """Number of rows that the source returned, whether or not they have changed."""
    deleted: int = 0
    """Number of rows that the source reported as deleted, or that a census lacks."""
    position: ReadPosition | None = None
    """The table's new read position; None if it has not changed."""
    has_rows_to_land: bool = False
    """Whether there are rows to land."""
    has_more: bool = False
    """Whether the table has more, as the task stopped early or the table is deferred (`Part.is_deferred`). Another
    landing continues after the last cursor."""
    lands_partially: bool = True
    """Whether rows that were read before an error may land. False for a part of a divided table, because the table's
    read position is valid only if all parts were read."""
    calls: int = 0
    """Number of API calls of the task."""
    calls_left: int | None = None
    """Number of API calls that the source still allows; None if it does not report that."""
    call_limit: int | None = None
    """Number of API calls that the source allows altogether; None if it does not report that."""
    failure: Failure | None = None
    """Why the table was not read completely; None if it was."""

    def count_page(self, page: Page) -> None:
        """Count a page of the source, also its rows that do not land because they have not changed."""
        self.pages += 1
        self.rows += len(page.rows)
        self.deleted += len(page.deleted)

    def add_usage(self, usage: Usage) -> None:
        """Add the source's calls and its remaining budget."""
        self.calls += usage.calls
        self.calls_left, self.call_limit = usage.left, usage.limit


class Part(InputPartition):
    """What one task reads: a table, a piece of a divided table, or in a census all tables."""

    def __init__(self, table: int = 0, piece: TablePart | None = None, position: ReadPosition | None = None) -> None:
        """Describe the part.

        Args:
            table: the table's index in `PollPlan.tables`.
            piece: the piece of the table to read; None for the whole table.
            position: the table's read position after the landing, which one of its pieces reports; None: unchanged.
        """
        super().__init__(table)
        self.table = table
        self.piece = piece
        self.position = position
        self.number = 0
        """The part's number among all parts of the poll, of which there are `part_count`."""
        self.part_count = 1
        self.calls = 0
        """Number of API calls that were made to divide the table."""
        self.is_deferred = False
        """Whether the table is not read in this landing but in a later one."""
        self.failure: Failure | None = None
        """Why the table could not be divided, so that it is not read; None if it could."""
