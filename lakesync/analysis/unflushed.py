"""Reads the deltas that gateways have acknowledged and that are not in the lake yet, from staging's log.

A *delta* is a change of one row by a client. It is in the log until a flush has written it to the lake. Queries
(`lakesync.analysis.query`, `lakehouse.spark_query`), `lakesync.analysis.provenance` and `trace` add the unflushed
deltas to those of the lake, so that their results include what a gateway has just accepted. The gateway may run
meanwhile: the log is opened for reading only. A *gateway* is one app's stream of changes. A *shard* is a store with
some of its tables; an *epoch* identifies one copy of a store. An *arrival* is the gateway's timestamp of a push (an
*hlc*, hybrid logical clock).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lakesync.model.errors import ConfigurationError
from lakesync.staging.log_reader import LogRange, read_log
from lakesync.staging.records import LogSource
from lakesync.staging.shards import urls_by_shard
from lakesync.staging.sqlite.administration import folder_of
from lakesync.staging.sqlite.files import LOG_FILE
from lakesync.staging.store_urls import store_status
from lakesync.wire.history import DELTA_FIELDS, delta_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.model.types import RowDelta

SCHEMA = pa.schema(
    [
        ("gateway", pa.string()),
        ("shard", pa.string()),
        ("epoch", pa.int64()),
        ("seq", pa.int64()),
        ("ordinal", pa.int32()),
        ("arrival", pa.int64()),
        *DELTA_FIELDS,
    ]
)
"""The columns of the lake's table `deltas`, except `batch_id` and `day`, which a flush adds."""


class UnflushedDelta(NamedTuple):
    """A delta and its position in staging's log: the first fields, in the order of `SCHEMA`."""

    gateway: str
    shard: str
    epoch: int
    """Identifies the log; a rebuilt store has another one."""
    seq: int
    """Sequence number of the push."""
    ordinal: int
    """Position in the push."""
    arrival: int
    """The gateway's hlc for the push."""
    delta: RowDelta


def unflushed_table(config: Config) -> pa.Table:
    """Return the unflushed deltas of every shard in the columns of `SCHEMA`.

    Call it before the lake is read: a delta that is flushed in between is then read twice, and never missed.

    Args:
        config: names the store and its shards.

    Returns:
        The deltas; an empty table if there is no store yet.

    Raises:
        StagingUnavailableError: the store exists but cannot be read.
    """
    found = list(unflushed_deltas(config))
    if not found:
        return SCHEMA.empty_table()
    positions = zip(*(each[:-1] for each in found), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(positions, SCHEMA, strict=False)]
    return pa.table([*arrays, *delta_columns([each.delta for each in found])], schema=SCHEMA)


def unflushed_deltas(config: Config) -> Iterator[UnflushedDelta]:
    """Yield the unflushed deltas, shard by shard, in order of arrival within each.

    Raises:
        StagingUnavailableError: the store exists but cannot be read.
    """
    for url in urls_by_shard(config.shard_config, config.staging.url).values():
        if url.startswith("memory:"):
            continue  # only the gateway's own process can read it
        try:
            heads = store_status(url).heads
        except ConfigurationError:
            continue  # there is no store before the first push
        for head in heads:
            if head.last_seq == head.flushed_seq:
                continue
            unflushed = LogRange(head.gateway, head.shard, head.epoch, head.flushed_seq + 1, head.last_seq)
            for push in read_log(_log_source(url), unflushed):
                for ordinal, delta in enumerate(push.deltas):
                    yield UnflushedDelta(head.gateway, head.shard, head.epoch, push.seq, ordinal, push.arrival, delta)


def _log_source(url: str) -> LogSource:
    """Return how to read the log of a staging store with the given URL."""
    if url.startswith("sqlite://"):
        return LogSource(url=f"jdbc:sqlite:{folder_of(url) / LOG_FILE}", table="log")
    return LogSource(url=f"jdbc:{url.replace('postgres://', 'postgresql://', 1)}", table="lakesync.log")
