"""Log rows to rows of `deltas`: bodies are decoded by the gateway's own code, in Arrow batches on Spark's workers.

The workers import `lakesync` and this package: they run from the same environment as the driver.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakesync import hlc
from lakesync.wire.history import DELTA_FIELDS, delta_columns
from lakesync.wire.json import decode_deltas
from lakesync.wire.log import unpack_body
from lakesync.wire.scanned import scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame

LOG_SCHEMA = "gateway string, shard string, epoch bigint, seq bigint, arrival bigint, client_id string, body binary"
"""What `decode_log` reads; JDBC infers narrower integers by itself."""

DELTAS_SCHEMA = (
    "gateway string, shard string, epoch bigint, batch_id string, seq bigint, ordinal int, arrival bigint, day date, "
    "table_name string, row_id string, op string, client_id string, hlc bigint, delta_id string, width int, "
    "columns map<string, string>"
)

BYTES_A_BATCH = 640 << 10
"""Of unpacked bodies: some two thousand deltas, which stay near the processor while they are taken apart."""

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
"""`DELTAS_SCHEMA` in Arrow's types."""


def decode_log(log: DataFrame, batch_id: str) -> DataFrame:
    """The deltas of log rows (`LOG_SCHEMA`) as rows of `deltas`, marked with their batch.

    A value's text becomes its JCS text, so that the lake compares and shows one spelling.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return decode_batches(batches, batch_id)

    return log.mapInArrow(decode, DELTAS_SCHEMA)


def decode_batches(batches: Iterable[pa.RecordBatch], batch_id: str) -> Iterator[pa.RecordBatch]:
    """`decode_log` on one worker."""
    for batch in batches:
        for entries in _portions(batch.to_pylist()):
            yield _decoded(entries, batch_id)


def day_of(arrival: int) -> date:
    """The UTC day of an arrival."""
    return datetime.fromtimestamp(hlc.decode(arrival)[0] / 1000, UTC).date()


class _Entry(NamedTuple):
    row: dict[str, Any]
    """Of the log."""
    body: bytes
    """Unpacked."""


def _portions(rows: Iterable[dict[str, Any]]) -> Iterator[list[_Entry]]:
    """Log rows, as many as make one batch."""
    entries: list[_Entry] = []
    size = 0
    for row in rows:
        entries.append(_Entry(row, unpack_body(row["body"])))
        size += len(entries[-1].body)
        if size >= BYTES_A_BATCH:
            yield entries
            entries, size = [], 0
    if entries:
        yield entries


def _decoded(entries: Sequence[_Entry], batch_id: str) -> pa.RecordBatch:
    counts, columns = _deltas_of([entry.body for entry in entries])
    pushes = pa.array(np.repeat(np.arange(len(entries)), counts))
    ordinals = np.arange(len(pushes)) - np.repeat(np.cumsum(counts) - counts, counts)

    def of_push(name: str, values: Iterable[object] | None = None) -> pa.Array:
        column = list(values) if values is not None else [entry.row[name] for entry in entries]
        return pa.array(column, DELTAS_ARROW.field(name).type).take(pushes)

    return pa.record_batch(
        [
            of_push("gateway"),
            of_push("shard"),
            of_push("epoch"),
            pa.repeat(batch_id, len(pushes)),
            of_push("seq"),
            pa.array(ordinals, pa.int32()),
            of_push("arrival"),
            of_push("day", (day_of(entry.row["arrival"]) for entry in entries)),
            *columns,
        ],
        schema=DELTAS_ARROW,
    )


def _deltas_of(bodies: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
    """How many deltas each body has, and the columns that they bring themselves."""
    found = scan(bodies)
    if found is not None:
        return found
    decoded = [decode_deltas(body) for body in bodies]
    counts = np.fromiter(map(len, decoded), np.int64, len(decoded))
    return counts, delta_columns([delta for deltas in decoded for delta in deltas])
