"""Log rows written as files of `deltas` by the tasks that read them."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg_core.transform import bucket

from resources.lake.table_files import BUCKET_ROWS, WRITTEN_SCHEMA, Layout, data_files, write_data_file
from resources.lake.tables import BUCKETS
from transforms.decode import LOG_SCHEMA, day_of, decode_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Batch, LogSource

DELTAS_A_TASK = 64_000
STORED_BYTES_A_TASK = 16 << 20
"""What one Spark task decodes and writes at most, about; where deltas are narrow their number says."""

BYTES_A_FILE = 256 << 20
"""Decoded, from which a task begins another file; it has as much in memory at once."""

ROWS_A_GROUP = 1_000
"""On average, from which a file has a row group for each bucket."""


def log_rows(spark: SparkSession, source: LogSource, batch: Batch) -> DataFrame:
    """The batch's log rows, read-only, in short ranges of `seq`."""
    tasks = min(batch.to_seq - batch.from_seq + 1, _tasks(batch))
    shard = batch.shard.replace("'", "''")
    query = (
        f"(SELECT gateway, shard, epoch, seq, arrival, client_id, body FROM {source.table} "
        f"WHERE gateway = '{batch.gateway}' AND shard = '{shard}' AND epoch = {batch.epoch} "
        f"AND seq BETWEEN {batch.from_seq} AND {batch.to_seq}) AS batch"
    )
    reader = spark.read.format("jdbc").options(
        url=source.url, dbtable=query, customSchema=LOG_SCHEMA, **source.properties
    )
    if tasks > 1:
        reader = reader.options(
            partitionColumn="seq", lowerBound=batch.from_seq, upperBound=batch.to_seq + 1, numPartitions=tasks
        )
    return reader.option("fetchsize", 100).load()


def write_log_files(table: Table, log: DataFrame, batch: Batch) -> list[DataFile]:
    """Have tasks write the batch's deltas as files of `deltas`, not committed yet.

    Args:
        table: `deltas`.
        log: the batch's log rows.
        batch: what they are marked with.
    """
    layout, batch_id = Layout.of(table), batch.batch_id
    days = [day_of(batch.arrival_low) + timedelta(days=number) for number in range(_number_of_days(batch))]
    places = {day: partition_of(table, batch.gateway, day) for day in days}
    folders = {day: folder for day, (folder, _) in places.items()}

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        for deltas in _gathered(decode_batches(batches, batch_id)):
            for day, rows in _days(deltas):
                groups, properties = bucketed(rows)
                yield write_data_file(layout, folders[day], groups, properties)

    return data_files(table, log.mapInArrow(write, WRITTEN_SCHEMA).toArrow(), dict(places.values()).__getitem__)


def partition_of(table: Table, gateway: str, day: date) -> tuple[str, tuple[object, ...]]:
    """The folder and the values of a gateway's day in `deltas`."""
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import StringType

    gateways = table.spec().fields[0]
    transform = gateways.transform
    assert isinstance(transform, BucketTransform)
    place = transform.transform(StringType())(gateway)
    return f"{gateways.name}={place}/day={day.isoformat()}", (place, (day - date(1970, 1, 1)).days)


def bucketed(rows: pa.Table) -> tuple[list[pa.Table], dict[str, str]]:
    """Rows of the history as the row groups of a file, and what its footer says of them.

    Whoever merges the bucket of a state table reads its row groups alone.
    """
    if rows.num_rows < BUCKETS * ROWS_A_GROUP:
        return [rows], {}
    places = np.asarray(bucket(rows["row_id"].combine_chunks(), BUCKETS))
    counts = np.bincount(places, minlength=BUCKETS)
    ordered = rows.take(pa.array(np.argsort(places, kind="stable")))
    ends = np.cumsum(counts)
    groups = [ordered.slice(end - count, count) for end, count in zip(ends, counts, strict=True) if count]
    return groups, {BUCKET_ROWS: json.dumps(counts.tolist())}


def _days(deltas: pa.Table) -> Iterator[tuple[date, pa.Table]]:
    """The rows of each day."""
    days = pc.unique(deltas["day"])
    for day in days:
        yield day.as_py(), deltas.filter(pc.equal(deltas["day"], day)) if len(days) > 1 else deltas


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """As many batches together as go into one file."""
    parts: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        parts.append(batch)
        size += batch.nbytes
        if size >= BYTES_A_FILE:
            yield pa.Table.from_batches(parts)
            parts, size = [], 0
    if parts:
        yield pa.Table.from_batches(parts)


def _tasks(batch: Batch) -> int:
    """An even number where there are several, for two cores have it about as often as four."""
    tasks = max(-(-batch.deltas // DELTAS_A_TASK), -(-batch.bytes // STORED_BYTES_A_TASK), 1)
    return tasks + tasks % 2 if tasks > 1 else tasks


def _number_of_days(batch: Batch) -> int:
    return (day_of(batch.arrival_high) - day_of(batch.arrival_low)).days + 1
