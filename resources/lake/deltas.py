"""From the log to `deltas`: a planned batch is carried exactly once, whatever dies in between.

The data itself is the watermark. A batch is written only when the table, read at snapshot S, lacks it, and the write is
an overwrite of exactly that batch, serialisable and validated from S: of two writers that read the same S one is
refused, also when one of them is the statement of a run that was killed. A commit's error means "unknown", so the table
is read again.

Compaction of `deltas` must keep to days before the oldest unflushed arrival: a file in which a batch is mixed with others
cannot be overwritten by batch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from assets.transforms.decode import LOG_SCHEMA, decode_log
from assets.transforms.ledger import id_sum
from lakesync.crash import crash_point
from lakesync.exceptions import CommitUnknownError, FlushError, IntegrityError, LakeUnavailableError, LakeSyncError
from resources.lake.tables import LakeNames, ensure_deltas, read_version

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import Column, DataFrame, SparkSession

    from lakesync.staging.records import Backlog, Batch, LogSource
    from lakesync.staging.store import PipelineStore

DELTAS_A_TASK = 50_000
"""Deltas that one Spark task decodes and writes."""

MAX_DELTAS = 200_000
"""Deltas a batch: what one commit to the lake carries at most, a larger push apart."""


class FlushReport(msgspec.Struct, frozen=True):
    """A batch that is in the lake, as read back from the committed table."""

    batch_id: str
    gateway: str
    deltas: int
    id_sum: int
    arrival_low: int
    arrival_high: int
    snapshot_id: int
    """The snapshot in which it was read back."""
    already_there: bool
    """An earlier or concurrent run had written it."""
    seconds: float


def flush(spark: SparkSession, store: PipelineStore, batch: Batch, names: LakeNames = LakeNames()) -> FlushReport:
    """Carry a planned batch into `deltas` and read it back; does not confirm it.

    Raises:
        FlushError: the batch is not in the lake; a repeat is safe.
        CommitUnknownError: nobody can tell whether it is; a repeat is safe, and will tell.
        IntegrityError: the lake holds another number of its deltas than the log.
    """
    raise NotImplementedError


def flush_due(
    spark: SparkSession,
    store: PipelineStore,
    *,
    gateways: Collection[str] | None = None,
    max_deltas: int = MAX_DELTAS,
    names: LakeNames = LakeNames(),
    on_flushed: Callable[[FlushReport], None] = lambda report: None,
) -> list[FlushReport]:
    """Plan, flush, confirm and trim every shard until all that waited at the start is in the lake.

    What is pushed meanwhile may come along, and is not waited for. A gateway that fails does not hold the others: they
    are carried first, then its error is raised (several as an ExceptionGroup), so reports go to `on_flushed` as they
    come. `gateways` limits the work to these.

    Raises:
        LakeUnavailableError: Spark is gone; nothing further was tried.
        FlushError, CommitUnknownError, IntegrityError: as `flush`, or `confirm` refused what was read back.
    """
    raise NotImplementedError


def flushed_arrivals(spark: SparkSession, names: LakeNames = LakeNames()) -> dict[str, int]:
    """The highest arrival in `deltas` a gateway: all its deltas up to there are in the lake."""
    raise NotImplementedError
