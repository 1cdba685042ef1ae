"""Counts deltas of the history `deltas` and sums their ids, in Spark tasks. Equal counts and sums mean equal sets.

A flush batch is a set of deltas (changes of rows) that one commit moves from staging, the gateways' store, to the lake.
`lakehouse.history.flush` calls this module to find out whether a batch is in the lake, and whether it is complete.
`lakehouse.checks` calls it to compare the lake with the ledger in which staging counts accepted deltas. A delta id is
text; the sum is over a 64-bit number for each id (`lakesync.model.delta.id_number`).
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from lakehouse.data_files import DataFile, divide_files, read_rows, rows_in
from lakehouse.history.decoding import day_of
from lakehouse.table_access import planned_files
from lakehouse.task_runner import in_tasks
from lakesync.adapters.arrow import id_numbers
from lakesync.analysis.catalogue import column_bounds
from lakesync.analysis.scans import all_of, condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession

    from lakesync.staging.records import Batch


class BatchSum(NamedTuple):
    """What the lake has of a flush batch."""

    deltas: int
    id_sum: int
    """Sum of the delta ids, modulo 2**64."""


ROWS_PER_TASK = 500_000
"""Number of rows that one task counts, approximately."""

_ID = pa.schema([("delta_id", pa.string())])
_IDS = pa.schema([("gateway", pa.string()), ("batch_id", pa.string()), ("delta_id", pa.string())])
"""The columns that are read of a file: `_ID` if all of its rows count, `_IDS` if those of one batch do."""
_MAX_TASKS = 64
"""Number of tasks that count a batch, at most."""
_SUMS = pa.schema([("count", pa.int64()), ("total", pa.int64())])
"""Columns of the rows that tasks yield, one for each file."""


class BatchFile(NamedTuple):
    """A data file that may have rows of a batch."""

    file: DataFile
    has_only_batch: bool
    """Whether the file has no other rows, so that they need not be filtered."""


def batch_files(table: Table, snapshot: int | None, batch: Batch) -> list[BatchFile]:
    """Return each file that may have rows of a batch. `sum_batch` reads these files.

    Args:
        table: the history, opened by pyiceberg.
        snapshot: id of the snapshot to read; None if the table is empty.
        batch: the flush batch.
    """
    first, last = (day_of(arrival).isoformat() for arrival in (batch.arrival_low, batch.arrival_high))
    may_have = all_of(
        condition("gateway", "=", batch.gateway),
        condition("day", ">=", first),
        condition("day", "<=", last),
        condition("batch_id", "=", batch.batch_id),
    )
    only_batch = [(batch.gateway, batch.gateway), (batch.batch_id, batch.batch_id)]
    files = []
    for scan_task in planned_files(table, snapshot, may_have):
        bounds = [column_bounds(table, scan_task.file, name) for name in ("gateway", "batch_id")]
        files.append(BatchFile(DataFile.of(scan_task), has_only_batch=bounds == only_batch))
    return files


def sum_batch(spark: SparkSession, files: Sequence[BatchFile], batch: Batch) -> BatchSum | None:
    """Count a batch's deltas in files and sum their ids, in Spark tasks; None if the files have none.

    Args:
        spark: an open Spark session.
        files: the result of `batch_files`.
        batch: the flush batch.
    """
    if not files:
        return None
    unmixed = {each.file.path for each in files if each.has_only_batch}
    rows_per_task = max(ROWS_PER_TASK, rows_in(each.file for each in files) // _MAX_TASKS)
    parts = divide_files([each.file for each in files], rows_per_task)

    def sums_of_part(number: int) -> Iterator[pa.RecordBatch]:
        for file in parts[number]:
            yield _sum_of(file, None if file.path in unmixed else batch)

    sums = in_tasks(spark, len(parts), sums_of_part, _SUMS).toArrow()
    count = pc.sum(sums["count"]).as_py() or 0
    total = sum(sums["total"].to_pylist()) % 2**64
    return BatchSum(count, total) if count else None


def is_in_batch(batch: Batch) -> Column:
    """Return the condition for a batch's rows in the history. The terms beside the batch id let Spark skip files."""
    days = (day_of(batch.arrival_low), day_of(batch.arrival_high))
    return (
        (sf.col("gateway") == batch.gateway)
        & sf.col("day").between(*days)
        & sf.col("arrival").between(batch.arrival_low, batch.arrival_high)
        & (sf.col("batch_id") == batch.batch_id)
    )


def id_sums(deltas: DataFrame, by: Sequence[str] = ()) -> DataFrame:
    """Return the columns `by`, `count` and `total`: the number of a group's deltas, and the sum of their ids.

    `total` is a decimal, modulo 2**64.

    Args:
        deltas: rows with `delta_id`, whose number is that of `lakesync.model.delta.id_number`.
        by: columns to group by. Without any there is one row; its `count` and `total` are null if there are no deltas.
    """
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in deltas.select(*by).schema.fields)
    schema = f"{fields}{', ' if by else ''}count bigint, total decimal(20,0)"

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [_sums(batch, by) for batch in batches]
        if parts:
            sums = pa.concat_tables(parts).group_by(list(by)).aggregate([("count", "sum"), ("total", "sum")])
            columns = [*(sums[name] for name in by), sums["count_sum"], _decimals(sums["total_sum"])]
            yield from pa.table(columns, [*by, "count", "total"]).to_batches()

    added = deltas.select("delta_id", *by).mapInArrow(add, schema)
    modulus = sf.lit(str(2**64)).cast("decimal(20,0)")
    total = (sf.sum("total") % modulus).cast("decimal(20,0)").alias("total")
    return added.groupBy(*by).agg(sf.sum("count").alias("count"), total)


def _sum_of(file: DataFile, batch: Batch | None) -> pa.RecordBatch:
    """Return the columns `_SUMS` for a batch's rows in a file, or with None for all rows.

    Spark has no unsigned integers, so the sum is a signed 64-bit integer.
    """
    count = total = 0
    for rows in read_rows(file, _ID if batch is None else _IDS):
        wanted = rows
        if batch is not None:
            is_of_batch = pc.and_(pc.equal(rows["gateway"], batch.gateway), pc.equal(rows["batch_id"], batch.batch_id))
            wanted = rows.filter(is_of_batch)
        ids = id_numbers(wanted["delta_id"].combine_chunks())
        count += len(ids)
        total += int(ids.sum(dtype="uint64"))
    signed = (total + 2**63) % 2**64 - 2**63
    return pa.RecordBatch.from_pylist([{"count": count, "total": signed}], _SUMS)


def _sums(batch: pa.RecordBatch, by: Sequence[str]) -> pa.Table:
    """Return one row for each group of a batch. Arrow sums unsigned integers modulo 2**64."""
    rows = pa.table([*(batch[name] for name in by), pa.array(id_numbers(batch["delta_id"]))], [*by, "total"])
    summed = rows.group_by(list(by)).aggregate([("total", "count"), ("total", "sum")])
    return summed.select([*by, "total_count", "total_sum"]).rename_columns([*by, "count", "total"])


def _decimals(numbers: pa.ChunkedArray) -> pa.Array:
    """Return unsigned integers as decimals, because Spark has no unsigned integers."""
    return pa.array([Decimal(number) for number in numbers.to_pylist()], pa.decimal128(20, 0))
