"""Decodes pushes in staging's log into rows of the history `deltas`, as Arrow batches.

A push is what a client sent in one request; staging's log has its body as the gateway received it. The Spark tasks of a
flush call this module (`lakehouse.history.log_reading`). It uses the gateway's own decoder.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from lakesync.model import hlc
from lakesync.wire.history import DELTA_FIELDS, delta_columns
from lakesync.wire.json import decode_deltas
from lakesync.wire.log import unpack_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakesync.staging.log_reader import LogRange, LogRow

DELTAS_SCHEMA = (
    "gateway string, shard string, epoch bigint, batch_id string, seq bigint, ordinal int, arrival bigint, day date, "
    "table_name string, row_id string, op string, client_id string, hlc bigint, delta_id string, width int, "
    "columns map<string, string>"
)
"""The columns of `deltas` in Spark's types."""

BYTES_PER_BATCH = 640 << 10
"""Bytes of unpacked bodies in one batch: about 2,000 deltas, which fit into the processor's cache."""

_DAY_MS = 86_400_000

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
    for entries in _portions(rows):
        yield _decoded(entries, log_range, batch_id)


def day_of(arrival: int) -> date:
    """Return the UTC day of an arrival."""
    return datetime.fromtimestamp(hlc.decode(arrival)[0] / 1000, UTC).date()


class _Push(NamedTuple):
    """A row of the log."""

    seq: int
    """The push's number in the log."""
    arrival: int
    body: bytes
    """The unpacked body: the deltas as JSON."""


def _portions(rows: Iterable[LogRow]) -> Iterator[list[_Push]]:
    """Group rows of the log into batches of about `BYTES_PER_BATCH`."""
    entries: list[_Push] = []
    size = 0
    for seq, arrival, body in rows:
        entries.append(_Push(seq, arrival, unpack_body(body or b"")))
        size += len(entries[-1].body)
        if size >= BYTES_PER_BATCH:
            yield entries
            entries, size = [], 0
    if entries:
        yield entries


def _decoded(entries: Sequence[_Push], log_range: LogRange, batch_id: str) -> pa.RecordBatch:
    """Decode some pushes into one batch of rows of `deltas`."""
    pushes = [decode_deltas(entry.body) for entry in entries]
    counts = np.fromiter(map(len, pushes), np.int64, len(pushes))
    number = int(counts.sum())
    seqs, arrivals = (np.fromiter((entry[place] for entry in entries), np.int64, len(entries)) for place in (0, 1))
    ordinals = np.arange(number) - np.repeat(np.cumsum(counts) - counts, counts)
    days = (arrivals >> hlc.COUNTER_BITS) // _DAY_MS
    return pa.record_batch(
        [
            pa.repeat(log_range.gateway, number),
            pa.repeat(log_range.shard, number),
            pa.repeat(pa.scalar(log_range.epoch, pa.int64()), number),
            pa.repeat(batch_id, number),
            pa.array(np.repeat(seqs, counts)),
            pa.array(ordinals, pa.int32()),
            pa.array(np.repeat(arrivals, counts)),
            pa.array(np.repeat(days, counts), pa.int32()).cast(pa.date32()),
            *delta_columns(list(chain.from_iterable(pushes))),
        ],
        schema=DELTAS_ARROW,
    )
