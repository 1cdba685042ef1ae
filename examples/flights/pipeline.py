"""Queries of the pipeline: whether everything is flushed, and the state as of a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame

from examples.flights.schemas import COLUMNS, GATEWAY
from lakehouse.checkpoints.checkpoint import state_as_of
from lakehouse.sessions import session
from lakehouse.staging_connection import pipeline_store
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.increments import forget_marks
from lakesync.config import Config
from lakesync.staging.store.pipeline import GatewayStore, PipelineStore

POLL = 0.5


class NotCarriedError(Exception):
    """The flush sensor's runs did not flush everything in time."""


@contextmanager
def staging(config: Config) -> Iterator[PipelineStore]:
    """Open the store as the pipeline sees it."""
    with pipeline_store(config) as store:
        yield store


def wait_until_carried(store: PipelineStore, patience: float, told: Callable[[int], None]) -> None:
    """Return once nothing is unflushed and the newest checkpoint covers the last arrival.

    `told` is called with the number of unflushed deltas.

    Raises:
        NotCarriedError: there was no progress for `patience` seconds.
    """
    deadline, before = time.monotonic() + patience, None
    while True:
        shards = [shard for shard in store.backlog() if shard.gateway == GATEWAY]
        waiting = sum(shard.deltas for shard in shards)
        told(waiting)
        checkpoint = store.newest_checkpoint(GATEWAY)
        last = max((shard.last_arrival for shard in shards), default=0)
        if not waiting and checkpoint is not None and checkpoint.arrival >= last:
            return
        where = checkpoint.arrival if checkpoint else None
        if (waiting, where) != before:
            deadline, before = time.monotonic() + patience, (waiting, where)
        if time.monotonic() > deadline:
            raise NotCarriedError(
                f"for {patience:.0f} s {waiting} deltas have waited, and the newest checkpoint is at {where} of {last}"
            )
        time.sleep(POLL)


def states_as_of(config: Config, store: GatewayStore, milliseconds: int) -> dict[str, pa.Table]:
    """Return each table's rows as of a server time in milliseconds, reduced by the lake from its history."""
    schemas = store.gateway_config(GATEWAY).schemas
    arrival = milliseconds << 16
    with session(config) as spark:
        return {
            table: _to_arrow(state_as_of(spark, schemas[table].schema, GATEWAY, arrival, names=LakeNames()))
            for table in COLUMNS
        }


def _to_arrow(state: DataFrame) -> pa.Table:
    """Convert to Arrow, with nullable fields because stamps may be null."""
    for stamp in ("_tombstone", "_inserted"):
        state = state.withColumn(stamp, state[stamp].cast("struct<hlc: bigint, client_id: string>"))
    return state.toArrow()


def erase_marks(config: Config) -> None:
    """Delete the merge mark of every state table."""
    with session(config) as spark:
        for table in COLUMNS:
            forget_marks(spark, table, LakeNames())
