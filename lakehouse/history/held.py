"""A flush's batch as `deltas` holds it at a snapshot: how many deltas, and the sum of their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.catalogue import planned_files
from lakehouse.data_files import DataFile, read_rows, rows_in, shares
from lakehouse.history.decoding import day_of
from lakehouse.task_runner import in_tasks
from lakesync.adapters.arrow import id_numbers
from lakesync.analysis.column_bounds import column_bounds
from lakesync.analysis.scans import all_of, condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table import Table
    from pyspark.sql import Column, SparkSession

    from lakesync.staging.records import Batch

Held = tuple[int, int]
"""Count, and sum of ids modulo 2**64."""

ROWS_A_TASK = 500_000

_ID = pa.schema([("delta_id", pa.string())])
_IDS = pa.schema([("gateway", pa.string()), ("batch_id", pa.string()), ("delta_id", pa.string())])
_SUMS = "count bigint, total bigint"


def batch_files(table: Table, snapshot: int | None, batch: Batch) -> list[tuple[DataFile, bool]]:
    """Return the files of a snapshot that may hold rows of a batch, each with whether all of its rows are the batch's.

    Args:
        table: the history.
        snapshot: its id; None: the table has none.
        batch: the batch.
    """
    first, last = (day_of(arrival).isoformat() for arrival in (batch.arrival_low, batch.arrival_high))
    near = all_of(
        condition("gateway", "=", batch.gateway),
        condition("day", ">=", first),
        condition("day", "<=", last),
        condition("batch_id", "=", batch.batch_id),
    )
    own = [(batch.gateway, batch.gateway), (batch.batch_id, batch.batch_id)]
    return [
        (DataFile.of(task), [column_bounds(table, task.file, name) for name in ("gateway", "batch_id")] == own)
        for task in planned_files(table, snapshot, near)
    ]


def held_in_lake(spark: SparkSession, files: Sequence[tuple[DataFile, bool]], batch: Batch) -> Held | None:
    """What these files hold of the batch, read by tasks; None where that is nothing.

    Args:
        spark: a session.
        files: as `batch_files` finds them.
        batch: the planned one.
    """
    if not files:
        return None
    whole = {file.path for file, is_whole in files if is_whole}
    parts = shares([file for file, _ in files], max(ROWS_A_TASK, rows_in(file for file, _ in files) // 64))

    def part(number: int) -> Iterator[pa.RecordBatch]:
        for file in parts[number]:
            yield _sum_of(file, None if file.path in whole else batch)

    sums = in_tasks(spark, len(parts), part, _SUMS).toArrow()
    count = pc.sum(sums["count"]).as_py() or 0
    total = sum(sums["total"].to_pylist()) % 2**64
    return (count, total) if count else None


def is_of(batch: Batch) -> Column:
    """The batch's rows, and enough around them to prune files by partition and bounds."""
    days = (day_of(batch.arrival_low), day_of(batch.arrival_high))
    return (
        (sf.col("gateway") == batch.gateway)
        & sf.col("day").between(*days)
        & sf.col("arrival").between(batch.arrival_low, batch.arrival_high)
        & (sf.col("batch_id") == batch.batch_id)
    )


def _sum_of(file: DataFile, batch: Batch | None) -> pa.RecordBatch:
    """Of the batch's rows among the file's, or of all; the sum as a signed number of 64 bits."""
    count = total = 0
    for rows in read_rows(file, _ID if batch is None else _IDS):
        own = rows
        if batch is not None:
            mine = pc.and_(pc.equal(rows["gateway"], batch.gateway), pc.equal(rows["batch_id"], batch.batch_id))
            own = rows.filter(mine)
        found = id_numbers(own["delta_id"].combine_chunks())
        count += len(found)
        total += int(found.sum(dtype="uint64"))
    signed = (total + 2**63) % 2**64 - 2**63
    return pa.record_batch([pa.array([count], pa.int64()), pa.array([signed], pa.int64())], ["count", "total"])
