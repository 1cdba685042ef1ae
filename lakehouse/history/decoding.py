"""Reads a planned flush batch from staging's log in Spark tasks, and decodes it into rows of the history `deltas`.

The log of the staging store has one row for each push: what a client sent to its gateway in one request, as bytes. A
push's arrival is the gateway's timestamp of receipt. A shard is a staging store with some of the tables; its epoch says
when the store was created. A flush batch is a range of the log. Each task reads a part of the batch directly from the
store's database, so no delta (change of a row) passes through the driver, and decodes it with the gateway's decoder.

`lakehouse.history.flush` calls `decoded_log`, notebooks that read the log call `decode_log`; modules that read the
history use `DELTAS_ARROW` and `day_of`.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from lakehouse.marks import utc_day
from lakehouse.table_definitions import DELTAS_FIELDS
from lakehouse.task_runner import in_tasks
from lakesync.model import hlc
from lakesync.model.parts import grouped
from lakesync.staging.log_reader import LogRange, log_rows
from lakesync.staging.records import LogSource
from lakesync.wire.history import DELTA_FIELDS, delta_columns
from lakesync.wire.json import decode_deltas
from lakesync.wire.log import unpack_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.log_reader import LogRow
    from lakesync.staging.records import Batch

BYTES_PER_BATCH = 640 << 10
"""Bytes of unpacked bodies that are decoded into one Arrow batch: about 2,000 deltas, which fit into the processor's
cache."""

DELTAS_ARROW = pa.schema(
    [
        ("gateway", pa.string()),
        ("shard", pa.string()),
        ("epoch", pa.int64()),
        ("batch_id", pa.string()),
        ("seq", pa.int64()),
        ("ordinal", pa.int32()),
        ("arrival", pa.int64()),
        ("day", pa.date32()),
        *DELTA_FIELDS,
    ]
)
"""The columns of `deltas` (`DELTAS_FIELDS`) in Arrow's types."""
_DAY_MS = 86_400_000


def decode_log(rows: Iterable[LogRow], log_range: LogRange, batch_id: str) -> Iterator[pa.RecordBatch]:
    """Decode rows of the log, each of which is a push, into rows of `deltas`.

    Values become canonical JSON (JCS), so that equal values have equal texts in the lake.

    Args:
        rows: rows of the log, in order.
        log_range: gateway, shard and epoch of the rows.
        batch_id: id of the flush batch, which every decoded row gets.

    Raises:
        ValidationError: a body is damaged, or was trimmed.
    """
    pushes = (_Push(seq, arrival, unpack_body(body or b"")) for seq, arrival, body in rows)
    for group in grouped(pushes, lambda push: len(push.body), BYTES_PER_BATCH):
        yield _decoded(group, log_range, batch_id)


def day_of(arrival: int) -> date:
    """Return the UTC day of an arrival."""
    return utc_day(hlc.wall_of(arrival))


class _Push(NamedTuple):
    """A row of the log."""

    seq: int
    """The push's number in the log."""
    arrival: int
    body: bytes
    """The unpacked body: the deltas as JSON."""


DELTAS_PER_TASK = 250_000
"""About the most deltas that one task decodes and writes."""
STORED_BYTES_PER_TASK = 16 << 20
"""About the most stored bytes of the log that one task decodes and writes."""

ORDERED_BYTES = 32 << 20
"""Bytes of decoded rows that a task sorts by table at once."""

_ROWS_PER_BATCH = 16_384
"""The most rows in one Arrow batch that a task yields to Spark."""


class _TaskRange(NamedTuple):
    """A range of a flush batch's pushes, for one task."""

    source: LogSource
    """Where tasks find the log."""
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
    parts = _task_ranges(source, batch)
    return in_tasks(spark, len(parts), lambda number: parts[number].deltas(), DELTAS_FIELDS)


def _decoded(pushes: Sequence[_Push], log_range: LogRange, batch_id: str) -> pa.RecordBatch:
    """Decode some pushes into one batch of rows of `deltas`."""
    deltas = [decode_deltas(push.body) for push in pushes]
    counts = np.fromiter(map(len, deltas), np.int64, len(deltas))
    delta_count = int(counts.sum())
    seqs = np.fromiter((push.seq for push in pushes), np.int64, len(pushes))
    arrivals = np.fromiter((push.arrival for push in pushes), np.int64, len(pushes))
    first_indexes = np.cumsum(counts) - counts  # of each push's first delta
    # a delta's ordinal is its position in its push
    ordinals = np.arange(delta_count) - np.repeat(first_indexes, counts)
    days = (arrivals >> hlc.COUNTER_BITS) // _DAY_MS
    return pa.record_batch(
        [
            pa.repeat(log_range.gateway, delta_count),
            pa.repeat(log_range.shard, delta_count),
            pa.repeat(pa.scalar(log_range.epoch, pa.int64()), delta_count),
            pa.repeat(batch_id, delta_count),
            pa.array(np.repeat(seqs, counts)),
            pa.array(ordinals, pa.int32()),
            pa.array(np.repeat(arrivals, counts)),
            pa.array(np.repeat(days, counts), pa.int32()).cast(pa.date32()),
            *delta_columns(list(chain.from_iterable(deltas))),
        ],
        schema=DELTAS_ARROW,
    )


def _task_ranges(source: LogSource, batch: Batch) -> list[_TaskRange]:
    """Divide a batch into ranges with about equal numbers of pushes."""
    pushes = batch.to_seq - batch.from_seq + 1
    tasks = max(-(-batch.deltas // DELTAS_PER_TASK), -(-batch.bytes // STORED_BYTES_PER_TASK), 1)
    tasks += tasks % 2 if tasks > 1 else 0  # two cores finish an even number together
    ends = np.linspace(batch.from_seq, batch.to_seq + 1, min(pushes, tasks) + 1).astype(int).tolist()
    return [
        _TaskRange(source, LogRange(batch.gateway, batch.shard, batch.epoch, first, end - 1), batch.batch_id)
        for first, end in pairwise(ends)
    ]


def _by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in portions of `ORDERED_BYTES`, each sorted by table.

    A row group of the file then has few tables, and readers of one table skip the row groups of others.
    """
    for portion in grouped(batches, lambda batch: batch.nbytes, ORDERED_BYTES):
        yield from _sorted_by_table(portion)


def _sorted_by_table(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some batches, sorted by table."""
    rows = pa.Table.from_batches(batches).combine_chunks()
    tables = rows["table_name"].combine_chunks().dictionary_encode()
    if len(tables.dictionary) > 1:
        rows = rows.take(pa.array(np.argsort(np.asarray(tables.indices), kind="stable")))
    yield from rows.to_batches(max_chunksize=_ROWS_PER_BATCH)
