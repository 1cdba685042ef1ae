"""Log rows to rows of `deltas`: bodies are decoded by the gateway's own code, in Arrow batches on Spark's workers.

The workers import `lakesync` and this package: they run from the same environment as the driver.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakesync import hlc
from lakesync.wire.history import DELTA_FIELDS, delta_values
from lakesync.wire.log import decode_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

LOG_SCHEMA = "gateway string, shard string, epoch bigint, seq bigint, arrival bigint, client_id string, body binary"
"""What `decode_log` reads; JDBC infers narrower integers by itself."""

DELTAS_SCHEMA = (
    "gateway string, shard string, epoch bigint, batch_id string, seq bigint, ordinal int, arrival bigint, day date, "
    "table_name string, row_id string, op string, client_id string, hlc bigint, delta_id string, width int, "
    "columns map<string, string>"
)

ROWS_A_BATCH = 10_000

_ARROW = pa.schema(
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


def decode_log(log: DataFrame, batch_id: str) -> DataFrame:
    """The deltas of log rows (`LOG_SCHEMA`) as rows of `deltas`, marked with their batch.

    A value's text becomes its JCS text, so that the lake compares and shows one spelling.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return decode_batches(batches, batch_id)

    return log.mapInArrow(decode, DELTAS_SCHEMA)


def decode_batches(batches: Iterable[pa.RecordBatch], batch_id: str) -> Iterator[pa.RecordBatch]:
    """`decode_log` on one worker."""
    rows: list[tuple[object, ...]] = []
    for batch in batches:
        for entry in batch.to_pylist():
            rows.extend(_rows(entry, batch_id))
            if len(rows) >= ROWS_A_BATCH:
                yield _record_batch(rows)
                rows = []
    if rows:
        yield _record_batch(rows)


def day_of(arrival: int) -> date:
    """The UTC day of an arrival."""
    return datetime.fromtimestamp(hlc.decode(arrival)[0] / 1000, UTC).date()


def _rows(entry: dict[str, Any], batch_id: str) -> Iterator[tuple[object, ...]]:
    arrival = entry["arrival"]
    day = day_of(arrival)
    place = (entry["gateway"], entry["shard"], entry["epoch"], batch_id, entry["seq"])
    for ordinal, delta in enumerate(decode_body(entry["body"])):
        yield (*place, ordinal, arrival, day, *delta_values(delta))


def _record_batch(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )
