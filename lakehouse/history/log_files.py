"""Log rows written as files of `deltas` by whoever reads them: Spark's tasks, or the run itself where they are few."""

from __future__ import annotations

import json
from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg_core.transform import bucket

from lakehouse.history.decoding import DELTAS_SCHEMA, day_of, decode_log
from lakehouse.table_definitions import BUCKETS
from lakehouse.table_files import BUCKET_ROWS, WRITTEN, WRITTEN_SCHEMA, Layout, data_files, write_data_file
from lakehouse.task_runner import ROWS_HERE, in_tasks, told
from lakesync.flush.log import Stretch, log_rows
from lakesync.staging.records import LogSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Batch

DELTAS_A_TASK = 250_000
STORED_BYTES_A_TASK = 16 << 20
"""What one Spark task decodes and writes at most, about; where deltas are narrow their number says.

A task costs as much to begin as 50,000 of them.
"""

STORED_BYTES_HERE = 2 << 20
"""Up to which the run's own process does it, if there are no more than `ROWS_HERE` deltas."""

BYTES_A_FILE = 256 << 20
"""Decoded, from which a task begins another file; it has as much in memory at once."""

ROWS_A_GROUP = 1_000
"""On average, from which a file has a row group for each bucket."""


class Slice(NamedTuple):
    """A part of a batch, as whoever carries it is given it."""

    source: LogSource
    stretch: Stretch
    batch_id: str

    def deltas(self) -> Iterator[pa.RecordBatch]:
        """Its rows of `deltas`."""
        return decode_log(log_rows(self.source, self.stretch), self.stretch, self.batch_id)

    def write(self, layout: Layout, folders: Mapping[date, str]) -> Iterator[pa.RecordBatch]:
        """Write them as files, each day's in its folder; rows of `table_files.WRITTEN`."""
        for deltas in _gathered(self.deltas()):
            for day, rows in _days(deltas):
                groups, properties = bucketed(rows)
                yield write_data_file(layout, folders[day], groups, properties)


def write_log_files(spark: SparkSession, table: Table, source: LogSource, batch: Batch) -> list[DataFile]:
    """Write a batch's deltas as files of `deltas`, not committed yet.

    Args:
        spark: whose tasks do it where they are many.
        table: `deltas`.
        source: of the log.
        batch: planned.
    """
    days = [day_of(batch.arrival_low) + timedelta(days=number) for number in range(_number_of_days(batch))]
    places = {day: partition_of(table, batch.gateway, day) for day in days}
    layout, folders = Layout.of(table), {day: folder for day, (folder, _) in places.items()}
    here = batch.deltas <= ROWS_HERE and batch.bytes <= STORED_BYTES_HERE
    parts = _slices(source, batch, 1 if here else _tasks(batch))

    def part(number: int) -> Iterator[pa.RecordBatch]:
        return parts[number].write(layout, folders)

    written = told(spark, len(parts), part, WRITTEN, WRITTEN_SCHEMA, here=here)
    return data_files(table, written, dict(places.values()).__getitem__)


def decoded_log(spark: SparkSession, source: LogSource, batch: Batch) -> DataFrame:
    """A batch's rows of `deltas`, for Spark to write."""
    parts = _slices(source, batch, _tasks(batch))
    return in_tasks(spark, len(parts), lambda number: parts[number].deltas(), DELTAS_SCHEMA)


def _slices(source: LogSource, batch: Batch, most: int) -> list[Slice]:
    """So many parts of a batch, each of about as many pushes; fewer where it has fewer pushes."""
    pushes = batch.to_seq - batch.from_seq + 1
    ends = np.linspace(batch.from_seq, batch.to_seq + 1, min(pushes, most) + 1).astype(int).tolist()
    return [
        Slice(source, Stretch(batch.gateway, batch.shard, batch.epoch, first, behind - 1), batch.batch_id)
        for first, behind in pairwise(ends)
    ]


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
    """An even number, for two cores have it about as often as four."""
    tasks = max(-(-batch.deltas // DELTAS_A_TASK), -(-batch.bytes // STORED_BYTES_A_TASK), 1)
    return tasks + tasks % 2


def _number_of_days(batch: Batch) -> int:
    return (day_of(batch.arrival_high) - day_of(batch.arrival_low)).days + 1
