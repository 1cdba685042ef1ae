"""Finds the files of the history with the deltas that a merge needs (its increment), and counts these deltas.

The column bounds of a file, its least and greatest values in Iceberg's manifests, show which deltas it may have. Merges
of state tables call this module before their Spark tasks run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.catalogue import open_table, planned_files
from lakehouse.data_files import DataFile, divide_files, rows_in
from lakehouse.history.decoding import day_of
from lakehouse.tables.increment import ROWS_PER_TASK, Increment
from lakehouse.task_runner import in_tasks
from lakesync.analysis.catalogue import column_bounds
from lakesync.analysis.scans import all_of, condition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.manifest import DataFile as ManifestFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession


class History(NamedTuple):
    """The files of the history that may have an increment's deltas."""

    files: tuple[DataFile, ...]
    deltas: int | None
    """Number of the increment's deltas; None if the files' column bounds do not show it."""

    @property
    def max_deltas(self) -> int:
        """Upper bound of the number of the increment's deltas."""
        return rows_in(self.files) if self.deltas is None else self.deltas


def history_files(spark: SparkSession, deltas: str, snapshot: int | None, increment: Increment) -> History:
    """Return the files of a snapshot that may have an increment's deltas, by column bounds.

    Args:
        spark: an open Spark session.
        deltas: the history's full, quoted name.
        snapshot: id of the snapshot to read; None if nothing was ever flushed.
        increment: the deltas to find.

    Raises:
        ConfigurationError: tasks cannot open a file.
    """
    if snapshot is None:
        return History((), 0)
    with open_table(spark, deltas) as table:
        return plan_files(table, snapshot, increment)


def plan_files(table: Table, snapshot: int, increment: Increment) -> History:
    """Do the work of `history_files` for an open table.

    Args:
        table: the history, opened by pyiceberg.
        snapshot: id of the snapshot to read.
        increment: the deltas to find.
    """
    ranges = increment.ranges.values()
    low = min((low for low, _ in ranges), default=0)
    high = max((high for _, high in ranges), default=0)
    near = all_of(
        condition("table_name", "=", increment.table),
        condition("arrival", ">", low),
        condition("arrival", "<=", high),
        condition("day", ">=", day_of(low).isoformat()),
    )
    found = [(task, _share(table, task.file, increment)) for task in planned_files(table, snapshot, near)]
    files = tuple(DataFile.of(task) for task, share in found if share != "none")
    is_estimate = increment.days is not None or any(share == "part" or task.delete_files for task, share in found)
    return History(files, None if is_estimate and files else rows_in(files))


def count_deltas(spark: SparkSession, history: History, increment: Increment) -> int:
    """Return the number of an increment's deltas. If column bounds do not show it, tasks read the files.

    Args:
        spark: an open Spark session.
        history: the files that may have the deltas.
        increment: the deltas to count.
    """
    if history.deltas is not None:
        return history.deltas
    parts = divide_files(history.files, max(ROWS_PER_TASK, rows_in(history.files) // 64))

    def part(number: int) -> Iterator[pa.RecordBatch]:
        count = sum(rows.num_rows for file in parts[number] for rows in increment.keys(file))
        yield pa.record_batch([pa.array([count], pa.int64())], ["count"])

    return pc.sum(in_tasks(spark, len(parts), part, "count bigint").toArrow()["count"]).as_py() or 0


def _share(table: Table, file: ManifestFile, increment: Increment) -> Literal["none", "part", "whole"]:
    """Return how much of a file belongs to an increment, by column bounds; "part" if they do not show it."""
    gateway, other = column_bounds(table, file, "gateway")
    first, last = column_bounds(table, file, "arrival")
    if gateway != other or not (isinstance(first, int) and isinstance(last, int)):
        return "part"
    low, high = increment.ranges.get(str(gateway), (0, 0))
    if last <= low or first > high:
        return "none"
    of_table = column_bounds(table, file, "table_name") == (increment.table, increment.table)
    return "whole" if low < first and last <= high and of_table else "part"
