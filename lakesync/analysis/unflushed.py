"""Deltas that were acknowledged and are not yet in the lake, read from staging's log beside its owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lakesync.model.errors import ConfigurationError
from lakesync.staging.log_reader import Stretch, read_log
from lakesync.staging.records import LogSource
from lakesync.staging.shards import shard_map, shard_urls
from lakesync.staging.sqlite.files import LOG_FILE
from lakesync.staging.sqlite.inspection import folder_of
from lakesync.staging.versions import status
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
"""Columns of `deltas`, those that a batch and a day give it left out."""


class Waiting(NamedTuple):
    """A delta that waits for the lake."""

    stretch: Stretch
    seq: int
    ordinal: int
    arrival: int
    delta: RowDelta


def unflushed(config: Config) -> pa.Table:
    """What waits in every shard, in the columns of `SCHEMA`; empty where there is no store yet.

    Read it before the lake: what is flushed meanwhile is then in both, and never in neither.

    Raises:
        StagingUnavailableError: the store is there and cannot be read.
    """
    waiting = list(waiting_deltas(config))
    if not waiting:
        return SCHEMA.empty_table()
    places = zip(*map(_place, waiting), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(places, SCHEMA, strict=False)]
    return pa.table([*arrays, *delta_columns([each.delta for each in waiting])], schema=SCHEMA)


def waiting_deltas(config: Config) -> Iterator[Waiting]:
    """What waits, shard by shard, in order of arrival within each.

    Raises:
        StagingUnavailableError: the store is there and cannot be read.
    """
    shards = shard_map(config.shard_config)
    urls = [config.staging.url] if shards is None else list(shard_urls(shards, config.staging.url).values())
    for url in urls:
        if url.startswith("memory:"):
            continue
        try:
            heads = status(url).heads
        except ConfigurationError:
            continue  # nothing was ever pushed there
        for head in heads:
            if head.last_seq == head.flushed_seq:
                continue
            stretch = Stretch(head.gateway, head.shard, head.epoch, head.flushed_seq + 1, head.last_seq)
            for push in read_log(_source(url), stretch):
                for ordinal, delta in enumerate(push.deltas):
                    yield Waiting(stretch, push.seq, ordinal, push.arrival, delta)


def _source(url: str) -> LogSource:
    if url.startswith("sqlite://"):
        return LogSource(url=f"jdbc:sqlite:{folder_of(url) / LOG_FILE}", table="log")
    return LogSource(url=f"jdbc:{url.replace('postgres://', 'postgresql://', 1)}", table="lakesync.log")


def _place(waiting: Waiting) -> tuple[object, ...]:
    stretch = waiting.stretch
    return (stretch.gateway, stretch.shard, stretch.epoch, waiting.seq, waiting.ordinal, waiting.arrival)
