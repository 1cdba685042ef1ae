"""Flushes planned batches of staging's log into the history `deltas`, each exactly once, even if a process is killed.

Staging is the store of accepted deltas (changes of rows); a *shard* is a part of it with some of the tables. A
*gateway* is one app's stream of deltas. Its clients send them in pushes. The log of a shard has a gateway's pushes,
until they are in the lake; those that are not are its *backlog*. A *batch* is a range of such a log. An *arrival* is
the gateway's timestamp of a push.

A flush writes a batch as an overwrite of the rows with the batch's id, though the table has no such rows yet. For an
overwrite, Iceberg checks that no such row was added since the snapshot that the flush has read (serialisable
isolation). So of two writers that read the same snapshot it rejects one, and it rejects the late commit of a killed
run. After an error of a commit the outcome is unknown, so the flush reads the table again.

A file must not have other batches while its batch may be written again. Iceberg knows only the least and greatest batch
id of a file; if the overwritten id lies between them, Iceberg does not know that the file has none of its rows, and
rejects the commit. The asset `deltas` and the erasure call `flush_backlog`, which plans the batches; runs of Dagster
read `flushed_arrivals`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from lakehouse.history.decoding import decoded_log
from lakehouse.history.id_sums import BatchSum, batch_files, is_in_batch, sum_batch
from lakehouse.history.ordered import latest_arrivals
from lakehouse.spark_errors import brief, lake_errors
from lakehouse.table_access import open_table, overwrite
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import NAMES, LakeNames
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import (
    CommitUnknownError,
    FlushError,
    IntegrityError,
    LakeSyncError,
    LakeUnavailableError,
    ValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from datetime import date

    from pyspark.sql import SparkSession

    from lakesync.staging.records import Backlog, Batch, CutPoint, LogSource
    from lakesync.staging.store.pipeline import FlushStore

MAX_DELTAS = 1_000_000
"""Deltas in one batch, and so in one commit to the lake, at most; a single push may be larger. Tasks share them, so a
larger batch does not need more memory in a task."""


class FlushReport(msgspec.Struct, frozen=True):
    """A flushed batch, as read back from the committed table."""

    batch_id: str
    gateway: str
    deltas: int
    """Number of deltas."""
    id_sum: int
    """Sum of the delta ids, modulo 2**64."""
    arrival_low: int
    """The batch's first arrival."""
    snapshot_id: int
    """The snapshot in which the batch was read back."""
    already_there: bool
    """Whether an earlier or concurrent run had written the batch, or this run in a commit that reported an error."""
    seconds: float


@lake_errors
def flush_batch(spark: SparkSession, store: FlushStore, batch: Batch, names: LakeNames) -> FlushReport:
    """Write a planned batch to `deltas` and read it back. The caller confirms it to staging.

    Args:
        spark: an open Spark session.
        store: the staging store.
        batch: the planned batch.
        names: catalogue and namespaces of the lake's tables. The table `deltas` must exist.

    Raises:
        FlushError: the batch is not in the lake; repeat the flush.
        CommitUnknownError: it is unknown whether the batch is in the lake; repeat the flush, which finds out.
        IntegrityError: the lake and the log have different numbers of the batch's deltas.
        LakeUnavailableError: Spark cannot be reached.
    """
    started = time.perf_counter()
    snapshot, stored = _read_batch(spark, batch, names)
    already_there = stored is not None
    if stored is None:
        crash_point("flush.planned")  # tests kill the process here
        try:
            _write(spark, store.log_source(batch.shard), batch, snapshot, names)
        except Exception as error:  # after any error only the table shows whether the batch is there
            snapshot, stored = _read_after(error, spark, batch, names)
            already_there = True
        else:
            crash_point("flush.written")
            snapshot, stored = _read_batch(spark, batch, names)
    if stored is None or snapshot is None:
        raise FlushError(
            f"batch {batch.batch_id} of {batch.gateway} was committed without an error and is not in {names.deltas}; "
            "it stays planned and is tried again"
        )
    if stored.deltas != batch.deltas:
        raise IntegrityError(
            f"batch {batch.batch_id} of {batch.gateway} has {batch.deltas} deltas in the log and {stored.deltas} in "
            f"{names.deltas}; nothing was confirmed or trimmed, compare both before going on"
        )
    crash_point("flush.committed")
    return FlushReport(
        batch.batch_id,
        batch.gateway,
        stored.deltas,
        stored.id_sum,
        batch.arrival_low,
        snapshot,
        already_there=already_there,
        seconds=time.perf_counter() - started,
    )


def flush_backlog(
    spark: SparkSession,
    store: FlushStore,
    *,
    gateways: Collection[str] | None = None,
    max_deltas: int = MAX_DELTAS,
    names: LakeNames = NAMES,
    cut_points: Mapping[str, CutPoint] | None = None,
    within: tuple[int, int] | None = None,
    on_failed: Callable[[str, LakeSyncError], object] | None = None,
) -> list[FlushReport]:
    """Flush every shard, batch by batch, until all deltas that were unflushed at the start are in the lake.

    Each batch is planned and afterwards confirmed in staging; then the shard's log is trimmed, which deletes flushed
    pushes. Deltas that are pushed meanwhile may be flushed too. A gateway that fails does not stop the others; its
    error is raised at the end (several as an ExceptionGroup).

    Args:
        spark: an open Spark session.
        store: the staging store.
        gateways: ids of the gateways to flush; None for all.
        max_deltas: deltas in one batch, at most.
        names: catalogue and namespaces of the lake's tables.
        cut_points: gateway → its cut point, the arrival of its next checkpoint, after which nothing is flushed.
            Gateways without one are not flushed. None to flush everything.
        within: the first and the last arrival to flush. The log is flushed in order, so a shard whose unflushed deltas
            begin before the first one is not flushed.
        on_failed: called with a gateway and its error, which is then not raised.

    Returns:
        The reports, in order.

    Raises:
        LakeUnavailableError: Spark cannot be reached; the remaining shards were not flushed.
        FlushError, CommitUnknownError, IntegrityError: as `flush_batch`, or staging did not confirm what was read back.
    """
    reports: list[FlushReport] = []
    errors: list[LakeSyncError] = []

    wanted = [shard for shard in store.backlog() if gateways is None or shard.gateway in gateways]
    due = [shard for shard in wanted if cut_points is None or shard.gateway in cut_points]
    if any(shard.flushed_seq < shard.last_seq for shard in due):
        lake_errors(ensure_deltas)(spark, names)
    for shard in due:
        try:
            since, through = within if within is not None else (None, None)
            if cut_points is not None:
                arrival = cut_points[shard.gateway].arrival
                through = arrival if through is None else min(arrival, through)
            reports.extend(_flush_shard(spark, store, shard, max_deltas, names, since, through))
        except LakeUnavailableError:
            raise
        except LakeSyncError as error:
            if on_failed is not None:
                on_failed(shard.gateway, error)
            else:
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(f"{len(errors)} shards could not be flushed", errors)
    return reports


def require_flushed(store: FlushStore, days: Collection[date]) -> None:
    """Raise an error if deltas of some days could not be flushed, because older ones come before them in the log.

    Args:
        store: the staging store.
        days: UTC days of arrival that a run has flushed; at least one.

    Raises:
        ValidationError: these days have unflushed deltas, which come after unflushed deltas of an earlier day.
    """
    wanted = {day.isoformat() for day in days}
    for gateway in store.gateways():
        # the ledger counts the accepted and the flushed deltas of each day
        unflushed = [day.day for day in store.ledger(gateway) if day.flushed_count < day.count]
        unflushed_wanted = sorted(wanted.intersection(unflushed))
        if unflushed_wanted and unflushed[0] < min(wanted):
            raise ValidationError(
                f"{', '.join(unflushed_wanted)} of gateway {gateway!r} cannot be flushed: its log goes to the lake in "
                f"order, and deltas of {unflushed[0]} come first. Include {unflushed[0]} in the backfill, or run "
                "`lakesync flush`"
            )


@lake_errors
def flushed_arrivals(spark: SparkSession, names: LakeNames, shards: Collection[str] | None = None) -> dict[str, int]:
    """Return gateway → its newest arrival in `deltas`, over all shards or some.

    A shard is flushed in order of arrival. So if one shard is given, all its deltas up to the result are in the lake.
    The newest arrival of several shards does not show how far each of them is.

    The arrivals are read from the column bounds of data files. Rows are read only if a compaction has mixed gateways or
    shards in a file.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        shards: names of the shards to read; None for all.
    """
    if ensure_deltas(spark, names).snapshot_id is None:
        return {}
    try:
        with open_table(spark, names.deltas) as table:
            by_stream = latest_arrivals(table, table.metadata.current_snapshot_id)
    except IntegrityError:  # a file has deltas of several gateways or shards
        rows = spark.table(names.deltas).groupBy("gateway", "shard").agg(sf.max("arrival").alias("arrival")).collect()
        by_stream = {f"{row['gateway']}/{row['shard']}": row["arrival"] for row in rows}
    by_gateway: dict[str, int] = {}
    for stream, arrival in by_stream.items():
        gateway, _, shard = stream.partition("/")
        if shards is None or shard in shards:
            by_gateway[gateway] = max(arrival, by_gateway.get(gateway, 0))
    return by_gateway


def _flush_shard(
    spark: SparkSession,
    store: FlushStore,
    shard: Backlog,
    max_deltas: int,
    names: LakeNames,
    since: int | None,
    through: int | None,
) -> Iterator[FlushReport]:
    """Flush a shard batch after batch, then trim its log: delete what is flushed, by this run or by a killed one.

    Args:
        spark: an open Spark session.
        store: the staging store.
        shard: the shard's backlog, with its gateway and name.
        max_deltas: deltas in one batch, at most.
        names: catalogue and namespaces of the lake's tables.
        since: the first arrival to flush; None for no bound.
        through: the last arrival to flush; None for no bound.
    """
    flushed_seq = shard.flushed_seq
    while flushed_seq < shard.last_seq:
        batch = store.plan(shard.gateway, shard.shard, max_deltas, through, since)
        if batch is not None and through is not None and batch.arrival_low <= through < batch.arrival_high:
            # the caller would take the shard for flushed up to `through`
            raise FlushError(
                f"batch {batch.batch_id} of {shard.gateway} was planned by another run and ends after {through}, up to "
                "which this run flushes; the next run flushes it"
            )
        # None: nothing is left to flush in the range. A batch that was planned before may be outside the range.
        if batch is None or not _is_within(batch, since, through):
            break
        report = flush_batch(spark, store, batch, names)
        store.confirm(batch.batch_id, report.deltas, report.id_sum, report.snapshot_id)
        crash_point("flush.confirmed")
        yield report
        flushed_seq = batch.to_seq
    store.trim(shard.gateway, shard.shard)
    crash_point("flush.trimmed")


def _is_within(batch: Batch, since: int | None, through: int | None) -> bool:
    """Return whether all arrivals of a batch are in a range; None means no bound."""
    return (since is None or since <= batch.arrival_low) and (through is None or batch.arrival_high <= through)


def _read_batch(spark: SparkSession, batch: Batch, names: LakeNames) -> tuple[int | None, BatchSum | None]:
    """Return the id of the current snapshot of `deltas`, and the number and id sum of the batch's deltas in it.

    The first is None if the table has no snapshot, the second if the snapshot has no delta of the batch.
    """
    with open_table(spark, names.deltas) as table:
        snapshot = table.metadata.current_snapshot_id
        files = batch_files(table, snapshot, batch)
    return snapshot, sum_batch(spark, files, batch)


def _read_after(error: Exception, spark: SparkSession, batch: Batch, names: LakeNames) -> tuple[int | None, BatchSum]:
    """Return the same as `_read_batch`, after a failed write.

    Raises:
        FlushError: the batch is not in the lake.
        CommitUnknownError: the table cannot be read either.
    """
    try:
        snapshot, stored = _read_batch(spark, batch, names)
    except Exception as unreadable:
        raise CommitUnknownError(
            f"writing batch {batch.batch_id} of {batch.gateway} ended in {brief(error)}, and {names.deltas} cannot be "
            f"read ({brief(unreadable)}); run the flush again, which finds out"
        ) from error
    if stored is None:
        raise FlushError(
            f"batch {batch.batch_id} of {batch.gateway} could not be written to {names.deltas}: {brief(error)}; "
            "it stays planned and is tried again"
        ) from error
    return snapshot, stored


def _write(spark: SparkSession, source: LogSource, batch: Batch, snapshot: int | None, names: LakeNames) -> None:
    """Commit a batch. Iceberg rejects it if others have written the batch since `snapshot`, which lacks it."""
    overwrite(decoded_log(spark, source, batch), names.deltas, is_in_batch(batch), snapshot, batch.batch_id)
