"""Carries out erasure requests in the lake, proves that nothing is left, and confirms the requests to staging.

A request covers all values of one row, or all values that one client wrote, in one gateway: an app's stream of changes.
Staging, the gateways' store, carries it out first (a *shard* is a staging store with some of the tables). Then the lake
does: covered deltas (changes) in the history `deltas` lose their contents; in *state tables*, which have the current
rows of the synced tables, rows with covered values are merged again from the history; and all older snapshots are
deleted with their files. So are older *checkpoints*: files with all rows of a gateway as of one arrival (the gateway's
timestamp of a commit), from which new clients start. A request is confirmed when no data file in the tables' folders
has anything that it covers. Every step may be repeated.

No other run may write the tables meanwhile: a merge that has read the history before could restore erased values. The
asset `erasure` (`assets.erasure`) redacts the history and merges each state table in steps of their own; its last step
calls `complete_erasures`. Its first step flushes the gateways of `open_requests`; each step then works on the requests
of `due_requests`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import functions as sf

from lakehouse.checkpoints.publication import delete_checkpoint_files
from lakehouse.data_files import parse_iceberg_uri
from lakehouse.erasure.coverage import Leftover, delete_files, deltas_of, find_leftovers, requests_of_table
from lakehouse.erasure.redaction import (
    MAX_ARRIVAL,
    drop_old_snapshots,
    erase_state_table,
    has_old_snapshots,
    redact_history,
    reject_older_merges,
)
from lakehouse.gateway_connections import MAX_REQUEST_BYTES
from lakehouse.maintenance import location_of
from lakehouse.spark_errors import lake_errors
from lakehouse.task_runner import failure_text, prepare_worker, raise_failure
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import start_of
from lakesync.wire.history import delta_of_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Backlog, Erasure
    from lakesync.staging.store.pipeline import ErasureStore, OpenStaging, PipelineStore

_RESTORE_CHUNK = 5_000
"""Number of deltas that one call sends to staging, at most."""


class ErasureProof(msgspec.Struct, frozen=True):
    """A request that the lake has carried out, and what was searched to prove it."""

    gateway: str
    seq: int
    """Number of the request, among those of its gateway."""
    table: str | None
    """The table of the covered row; None, like `row_id`, if the request covers what a client wrote."""
    row_id: str | None
    client_id: str | None
    """The covered client; None if the request covers a row."""
    requested_ms: int
    """Server wall time of the request, in milliseconds since 1970."""
    searched: tuple[str, ...]
    """URIs of the folders whose data files were all read, without finding covered rows."""
    removed: tuple[str, ...]
    """Deleted data files that had covered rows and that no snapshot referenced; killed runs had left them."""


class SearchResult(msgspec.Struct, frozen=True):
    """The result of searching every data file for covered rows."""

    proven: tuple[ErasureProof, ...]
    """The requests of which no file has covered rows."""
    left: tuple[Leftover, ...]
    """Files in use that still have rows which the other requests cover."""


def due_requests(store: PipelineStore) -> dict[str, list[Erasure]]:
    """Return gateway → the open requests whose covered deltas are all in the lake, so that it can carry them out.

    The other requests are due after the next flush.

    Raises:
        StagingUnavailableError: the store cannot be reached.
    """
    requests = open_requests(store)
    backlog = store.backlog() if requests else []
    due = {
        gateway: _flushed_requests(of_gateway, [each for each in backlog if each.gateway == gateway])
        for gateway, of_gateway in requests.items()
    }
    return {gateway: of_gateway for gateway, of_gateway in due.items() if of_gateway}


def open_requests(store: ErasureStore) -> dict[str, list[Erasure]]:
    """Return gateway → the requests that staging has carried out and the lake has not confirmed.

    Raises:
        StagingUnavailableError: the store cannot be reached.
    """
    open_by_gateway = {
        gateway: [each for each in store.erasures(gateway) if each.done_ms is not None and each.lake_ms is None]
        for gateway in store.gateways()
    }
    return {gateway: requests for gateway, requests in open_by_gateway.items() if requests}


@lake_errors
def complete_erasures(
    spark: SparkSession,
    store: ErasureStore,
    requests: Sequence[Erasure],
    names: LakeNames,
    checkpoints_uri: str,
    open_staging: OpenStaging,
) -> SearchResult:
    """Carry out one gateway's requests in all tables, prove that, and confirm the proven requests to staging.

    It redacts the history and merges the state tables as the asset's earlier steps do, which changes nothing if they
    have succeeded. Then it deletes the history's old snapshots and the checkpoints from before the erasure.
    `lake_errors` turns Spark's errors into LakeUnavailableError if the server or the catalogue does not answer.

    Args:
        spark: an open Spark session.
        store: the staging store.
        requests: one gateway's requests, at least one.
        names: catalogue and namespaces of the lake's tables.
        checkpoints_uri: URI of the folder with the checkpoints of all gateways.
        open_staging: opens the staging store in a Spark task.

    Raises:
        LakeUnavailableError: a data file cannot be read, or Spark cannot be reached.
    """
    redact_history(spark, requests, names)
    tables = _tables_of(spark, requests, names)
    for table in tables:
        erase_state_table(spark, table, requests, names)
        reject_older_merges(spark, names.state(table), names)
    if has_old_snapshots(spark, names.deltas):
        drop_old_snapshots(spark, names.deltas, names)
    restored = [_restore_overwritten(spark, store, each, names, open_staging) for each in requests]
    delete_checkpoint_files(checkpoints_uri, requests[0].gateway, max(each.arrival for each in restored))
    crash_point("erasure.checkpoints")  # tests kill the process here
    result = _search_erased(spark, requests, tables, names)
    for each in result.proven:
        store.confirm_erasure(each.gateway, each.seq)
        crash_point("erasure.confirmed")
    return result


@lake_errors
def _tables_of(spark: SparkSession, requests: Sequence[Erasure], names: LakeNames) -> dict[str, set[str]]:
    """Return the names of the state tables for which covered deltas were written, each with the deltas' shards.

    Args:
        spark: an open Spark session.
        requests: one gateway's requests, at least one.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    tables_and_shards = deltas_of(requests).select(spark, names.deltas, "table_name, shard").distinct().collect()
    shards: dict[str, set[str]] = {}
    for row in tables_and_shards:
        shards.setdefault(row["table_name"], set()).add(row["shard"])
    return {table: shards[table] for table in sorted(shards) if spark.catalog.tableExists(names.state(table))}


@lake_errors
def _restore_overwritten(
    spark: SparkSession, store: ErasureStore, erasure: Erasure, names: LakeNames, open_staging: OpenStaging
) -> Erasure:
    """Restore in staging the older values, of other clients, that a client's erased values had overwritten.

    Staging has only the newest value of a column; the history has the older ones, and lost the client's own before
    this call. The erasure of a row restores nothing.

    Args:
        spark: an open Spark session.
        store: the staging store.
        erasure: the request.
        names: catalogue and namespaces of the lake's tables.
        open_staging: opens the staging store in a Spark task.

    Returns:
        The request with its new arrival, that of the restored rows. Checkpoints from before it are no longer served.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if erasure.client_id is not None:
        of_gateway = spark.table(names.deltas).where(sf.col("gateway") == erasure.gateway)
        # `width`: the number of columns. An UPDATE without columns is a delta that an erasure has emptied. DELETEs need
        # not be restored, because the erasure of a client removes no other client's DELETE from staging.
        with_contents = of_gateway.where("width > 0 OR op = 'INSERT'")
        rows_of_client = deltas_of([erasure]).select(spark, names.deltas, "table_name, row_id").distinct()
        others = with_contents.join(rows_of_client, ["table_name", "row_id"], "semi")
        wanted = others.select("op", "table_name", "row_id", "client_id", "columns", "hlc", "delta_id")
        task = _RestoreTask(open_staging, erasure.gateway, erasure.seq)
        failures = wanted.repartition(1).mapInArrow(task.run, "failure string").collect()
        raise_failure(row["failure"] for row in failures)
    # this last call restores nothing; it assigns the new arrival, also if there was nothing to restore
    erasure = store.restore(erasure.gateway, erasure.seq, [])
    crash_point("erasure.restored")
    return erasure


class _RestoreTask(NamedTuple):
    """The Spark task that sends deltas of the history to staging."""

    open_staging: OpenStaging
    gateway: str
    seq: int

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the deltas in chunks; yield one row with the error if that fails, otherwise none."""
        prepare_worker()
        try:
            with self.open_staging() as store:
                for batch in batches:
                    for chunk in _chunks(batch):
                        store.restore(self.gateway, self.seq, [delta_of_row(row) for row in chunk.to_pylist()])
        except LakeSyncError as error:
            yield pa.RecordBatch.from_pydict({"failure": [failure_text(error)]})


def _flushed_requests(requests: Iterable[Erasure], backlog: Iterable[Backlog]) -> list[Erasure]:
    """Return the requests whose covered deltas are all in the lake.

    Args:
        requests: one gateway's requests.
        backlog: the gateway's unflushed deltas, by shard (a staging store with some of its tables).
    """
    oldest_unflushed = min(
        (start_of(each.oldest_ms) for each in backlog if each.oldest_ms is not None), default=MAX_ARRIVAL
    )
    # covered deltas arrived before their request, so they are flushed if everything before the request is
    return [each for each in requests if each.arrival < oldest_unflushed]


def _chunks(deltas: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide deltas into chunks that one call sends to staging."""
    if deltas.num_rows > _RESTORE_CHUNK or (deltas.num_rows > 1 and deltas.nbytes > MAX_REQUEST_BYTES):
        half = deltas.num_rows // 2
        yield from _chunks(deltas.slice(0, half))
        yield from _chunks(deltas.slice(half))
    elif deltas.num_rows:
        yield deltas


@lake_errors
def _search_erased(
    spark: SparkSession, requests: Sequence[Erasure], tables: Mapping[str, set[str]], names: LakeNames
) -> SearchResult:
    """Search every data file of the history and of state tables for rows that one gateway's requests cover.

    If no snapshot references a file with such rows, a killed run has left it, and it is deleted. Spark may still commit
    for that run. This does no harm: Iceberg rejects an overwrite, because the table has changed since (a flush too is
    an overwrite), and an append reaches only the branch of its merge, which no run moves `main` to.

    Args:
        spark: an open Spark session.
        requests: one gateway's requests, at least one.
        tables: the state tables to search, each with the shards of its deltas.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: a file cannot be read, or Spark cannot be reached.
    """
    searched: list[str] = []
    left: list[Leftover] = []
    removed: dict[int, list[str]] = {}
    for table in (None, *tables):  # None: the history
        name = names.deltas if table is None else names.state(table)
        location = location_of(spark, name)
        searched.append(location)
        searched_for = requests if table is None else requests_of_table(requests, table, tables[table])
        leftovers = find_leftovers(spark, location, searched_for, history=table is None)
        in_use = {
            parse_iceberg_uri(row["file_path"])[1]
            for row in spark.table(f"{name}.all_files").select("file_path").collect()
        }
        left += [each for each in leftovers if each.path in in_use]
        orphans = [each for each in leftovers if each.path not in in_use]
        delete_files(location, sorted({each.path for each in orphans}))
        for each in orphans:
            removed.setdefault(each.seq, []).append(each.path)
    failed = {each.seq for each in left}
    proven = [
        ErasureProof(
            each.gateway,
            each.seq,
            each.table,
            each.row_id,
            each.client_id,
            each.requested_ms,
            tuple(searched),
            tuple(removed.get(each.seq, ())),
        )
        for each in requests
        if each.seq not in failed
    ]
    return SearchResult(tuple(proven), tuple(left))
