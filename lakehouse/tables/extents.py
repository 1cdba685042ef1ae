"""The files of the history in which an increment is, and how many deltas it has where their bounds say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from pyspark.sql import functions as sf

from lakehouse.bounds import bounds_of
from lakehouse.catalogue import iceberg_table
from lakehouse.data_files import DataFiles, UnreadableError, files_at
from lakehouse.file_systems import is_readable
from lakehouse.history.decoding import day_of
from lakesync.analysis.scans import holds

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from lakehouse.tables.buckets import Increment


class History(NamedTuple):
    """Where an increment is."""

    files: DataFiles | None
    """None where tasks cannot open them, and Spark has to."""
    deltas: int | None
    """How many it has, where the files' bounds say that every row of them is its."""


def history_files(spark: SparkSession, deltas: str, snapshot: int | None, increment: Increment) -> History:
    """Where a snapshot of the history has an increment.

    Args:
        spark: a session.
        deltas: the history's full name, quoted.
        snapshot: its id; None where nothing was ever flushed.
        increment: which deltas.
    """
    if snapshot is None:
        return History(DataFiles(), 0)
    with iceberg_table(spark, deltas) as table:
        if table is not None:
            return _planned(table, snapshot, increment)
    return _found_by_spark(spark, deltas, snapshot, increment)


def _planned(table: Table, snapshot: int, increment: Increment) -> History:
    from pyiceberg import expressions as ice

    low, high = _arrivals(increment)
    near = ice.And(
        holds("table_name", "=", increment.table),
        holds("arrival", ">", low),
        holds("arrival", "<=", high),
        holds("day", ">=", day_of(low).isoformat()),
    )
    shares = [
        (task, _share(table, task.file, increment)) for task in table.scan(near, snapshot_id=snapshot).plan_files()
    ]
    tasks = [task for task, share in shares if share != "none"]
    files = DataFiles(
        tuple(task.file.file_path for task in tasks),
        tuple({deleted.file_path for task in tasks for deleted in task.delete_files}),
        sum(task.file.record_count for task in tasks),
    )
    if not all(map(is_readable, (*files.data, *files.deletes))):
        return History(None, None)
    doubtful = increment.days is not None or files.deletes or any(share == "part" for _, share in shares)
    return History(files, None if doubtful else files.rows)


def _share(table: Table, file: DataFile, increment: Increment) -> Literal["none", "part", "whole"]:
    """How much of a file is the increment's, by the bounds of its columns."""
    gateway, other = bounds_of(table, file, "gateway")
    first, last = bounds_of(table, file, "arrival")
    if gateway != other or not (isinstance(first, int) and isinstance(last, int)):
        return "part"
    low, high = increment.ranges.get(str(gateway), (0, 0))
    if last <= low or first > high:
        return "none"
    of_table = bounds_of(table, file, "table_name") == (increment.table, increment.table)
    return "whole" if low < first and last <= high and of_table else "part"


def _found_by_spark(spark: SparkSession, deltas: str, snapshot: int, increment: Increment) -> History:
    bounds = sf.col("readable_metrics")
    low, high = _arrivals(increment)
    where = (bounds["arrival"]["upper_bound"] > low) & (bounds["arrival"]["lower_bound"] <= high)
    where &= bounds["table_name"]["lower_bound"] <= increment.table
    where &= bounds["table_name"]["upper_bound"] >= increment.table
    where &= bounds["day"]["upper_bound"] >= sf.lit(day_of(low))
    try:
        found = files_at(spark, deltas, snapshot, sf.coalesce(where, sf.lit(True)))
    except UnreadableError:
        return History(None, None)
    return History(found.get(0, DataFiles()), None)


def _arrivals(increment: Increment) -> tuple[int, int]:
    """Above which, and up to which, all of its arrivals are."""
    ranges = increment.ranges.values()
    return min((low for low, _ in ranges), default=0), max((high for _, high in ranges), default=0)
