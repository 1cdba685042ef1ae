"""Reads a planned flush batch from staging's log and decodes it into rows of the history `deltas`, in Spark tasks.

A batch is a part of the log that the store has reserved for one flush. Each task reads a part of the batch directly
from the store's database, so the driver never holds the deltas. `lakehouse.history.flush` calls it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from lakehouse.history.decoding import DELTAS_SCHEMA, decode_log
from lakehouse.task_runner import in_tasks
from lakesync.staging.log_reader import LogRange, log_rows
from lakesync.staging.records import LogSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Batch

DELTAS_PER_TASK = 250_000
STORED_BYTES_PER_TASK = 16 << 20
"""Deltas and stored bytes that one task decodes and writes at most, approximately."""

ORDERED_BYTES = 32 << 20
"""Bytes of decoded rows that a task sorts by table at once, so that a row group of the file has few tables."""

_ROWS_PER_BATCH = 16_384


class _Slice(NamedTuple):
    """A range of a batch's pushes, for one task."""

    source: LogSource
    log_range: LogRange
    batch_id: str

    def deltas(self) -> Iterator[pa.RecordBatch]:
        """Yield the range's deltas as rows of `deltas`."""
        return _by_table(decode_log(log_rows(self.source, self.log_range), self.log_range, self.batch_id))


def decoded_log(spark: SparkSession, source: LogSource, batch: Batch) -> DataFrame:
    """Return a batch's rows of `deltas`, decoded from the log.

    Args:
        spark: an open Spark session.
        source: where tasks find the log of the batch's shard.
        batch: the planned flush batch.
    """
    parts = _slices(source, batch)
    return in_tasks(spark, len(parts), lambda number: parts[number].deltas(), DELTAS_SCHEMA)


def _slices(source: LogSource, batch: Batch) -> list[_Slice]:
    """Divide a batch into ranges with about equal numbers of pushes."""
    pushes = batch.to_seq - batch.from_seq + 1
    most = max(-(-batch.deltas // DELTAS_PER_TASK), -(-batch.bytes // STORED_BYTES_PER_TASK), 1)
    most += most % 2 if most > 1 else 0  # two cores finish an even number together
    ends = np.linspace(batch.from_seq, batch.to_seq + 1, min(pushes, most) + 1).astype(int).tolist()
    return [
        _Slice(source, LogRange(batch.gateway, batch.shard, batch.epoch, first, after - 1), batch.batch_id)
        for first, after in pairwise(ends)
    ]


def _by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows, sorted by table within each `ORDERED_BYTES`."""
    parts: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        parts.append(batch)
        size += batch.nbytes
        if size >= ORDERED_BYTES:
            yield from _ordered(parts)
            parts, size = [], 0
    if parts:
        yield from _ordered(parts)


def _ordered(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows grouped by table, since the history's partitions include the table."""
    whole = pa.Table.from_batches(parts).combine_chunks()
    tables = whole["table_name"].combine_chunks().dictionary_encode()
    if len(tables.dictionary) > 1:
        whole = whole.take(pa.array(np.argsort(np.asarray(tables.indices), kind="stable")))
    yield from whole.to_batches(max_chunksize=_ROWS_PER_BATCH)
