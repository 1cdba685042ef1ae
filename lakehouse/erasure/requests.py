"""Carries out erasure requests in the lake, proves that nothing is left, and confirms the requests to staging.

Covered deltas stay in `deltas` without contents, as in staging: op UPDATE, no columns. Rows with covered values are
merged again from the remaining deltas. Then all older snapshots and their files are deleted. Every step may be
repeated. A request is confirmed when no data file, read without Iceberg, has anything that it covers.

No other run may write the tables meanwhile: a merge that has read the history before could restore erased values. The
steps of the asset `erasure` call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import functions as sf

from lakehouse.erasure.conditions import deltas_of
from lakehouse.erasure.leftovers import Leftover, bare, find_leftovers, remove
from lakehouse.erasure.redaction import clear_table, forget_past, has_past, redact
from lakehouse.failures import failure_text, raise_failure
from lakehouse.file_systems import file_system_of
from lakehouse.maintenance import location_of
from lakehouse.spark_errors import lake_errors
from lakehouse.tables.verification import row_delta
from lakehouse.task_runner import prepare_worker
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import start_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from lakehouse.table_definitions import LakeNames
    from lakesync.staging.records import Backlog, Erasure
    from lakesync.staging.store.pipeline import ErasureStore, OpenStaging, PipelineStore

RESTORED_AT_ONCE = 5_000
"""Number of deltas in one message to staging."""

_EVER = (1 << 63) - 1


class ErasureProof(msgspec.Struct, frozen=True):
    """A request that the lake has carried out, and its proof."""

    gateway: str
    seq: int
    table: str | None
    row_id: str | None
    client_id: str | None
    requested_ms: int
    searched: tuple[str, ...]
    """Folders all of whose data files were read, also those that no snapshot names, without finding covered rows."""
    removed: tuple[str, ...]
    """Data files of killed runs that had covered rows and that no snapshot named."""


class SearchResult(msgspec.Struct, frozen=True):
    """The result of searching every file."""

    proven: tuple[ErasureProof, ...]
    """Requests without covered rows."""
    left: tuple[Leftover, ...]
    """Files with rows that the other requests cover."""


def due_requests(store: PipelineStore) -> dict[str, list[Erasure]]:
    """Return gateway → the open requests that the lake can carry out: it has all deltas that these cover.

    Raises:
        StagingUnavailableError: the store cannot be reached.
    """
    requests = open_requests(store)
    backlog = store.backlog() if requests else []
    due = {
        gateway: reached(mine, [each for each in backlog if each.gateway == gateway])
        for gateway, mine in requests.items()
    }
    return {gateway: mine for gateway, mine in due.items() if mine}


def open_requests(store: ErasureStore) -> dict[str, list[Erasure]]:
    """Return gateway → the requests that staging has carried out and the lake has not.

    Raises:
        StagingUnavailableError: the store cannot be reached.
    """
    found = {
        gateway: [each for each in store.erasures(gateway) if each.done_ms is not None and each.lake_ms is None]
        for gateway in store.gateways()
    }
    return {gateway: requests for gateway, requests in found.items() if requests}


def reached(requests: Iterable[Erasure], backlog: Iterable[Backlog]) -> list[Erasure]:
    """Return the requests whose covered deltas are all in the lake.

    Args:
        requests: requests of one gateway.
        backlog: the gateway's unflushed deltas, by shard.
    """
    waiting = [start_of(each.oldest_ms) for each in backlog if each.oldest_ms is not None]
    return [each for each in requests if each.arrival < min(waiting, default=_EVER)]


@lake_errors
def conclude(
    spark: SparkSession,
    store: ErasureStore,
    requests: Sequence[Erasure],
    names: LakeNames,
    checkpoints_uri: str,
    open_staging: OpenStaging,
) -> SearchResult:
    """Carry out one gateway's requests in all tables, prove it, and confirm the proven requests to staging.

    Work that other steps have done is not repeated. The next checkpoint is a new one.

    Args:
        spark: a session.
        store: the staging store.
        requests: requests of one gateway.
        names: the lake's names.
        checkpoints_uri: the folder of all frames.
        open_staging: opens the store in a task of Spark.

    Raises:
        FlushError: a data file cannot be read.
        LakeUnavailableError: Spark cannot be reached.
    """
    redact(spark, requests, names)
    tables = tables_of(spark, requests, names)
    for table in tables:
        clear_table(spark, table, requests, names)
    if has_past(spark, names.deltas):
        forget_past(spark, names.deltas, names)
    arrival = max(restore_hidden(spark, store, each, names, open_staging).arrival for each in requests)
    drop_frames(checkpoints_uri, requests[0].gateway, arrival)
    ended = prove(spark, requests, tables, names)
    for each in ended.proven:
        store.confirm_erasure(each.gateway, each.seq)
        crash_point("erasure.confirmed")
    return ended


@lake_errors
def tables_of(spark: SparkSession, requests: Sequence[Erasure], names: LakeNames) -> list[str]:
    """Return the state tables that have rows of covered deltas.

    Args:
        spark: a session.
        requests: requests of one gateway.
        names: the lake's names.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    found = deltas_of(requests).select(spark, names.deltas, "table_name").distinct().collect()
    return sorted(row["table_name"] for row in found if spark.catalog.tableExists(names.state(row["table_name"])))


@lake_errors
def restore_hidden(
    spark: SparkSession, store: ErasureStore, erasure: Erasure, names: LakeNames, open_staging: OpenStaging
) -> Erasure:
    """Restore in staging the values that erased deltas had hidden, and return the request with its new arrival.

    Staging does not store what a column was before the erased client wrote it; the history does. Checkpoints from
    before the new arrival are no longer served. The erasure of a row restores nothing.

    Args:
        spark: a session.
        store: the staging store.
        erasure: the request.
        names: the lake's names.
        open_staging: opens the staging store.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    if erasure.client_id is not None:
        of_gateway = spark.table(names.deltas).where(sf.col("gateway") == erasure.gateway)
        rest = of_gateway.where("width > 0 OR op = 'INSERT'")
        written = deltas_of([erasure]).select(spark, names.deltas, "table_name, row_id").distinct()
        rows = rest.join(written, ["table_name", "row_id"], "semi")
        wanted = rows.select("op", "table_name", "row_id", "client_id", "columns", "hlc", "delta_id")
        restoring = _Restoring(open_staging, erasure.gateway, erasure.seq)
        failures = wanted.repartition(1).mapInArrow(restoring.run, "failure string").collect()
        raise_failure(row["failure"] for row in failures)
    erasure = store.restore(erasure.gateway, erasure.seq, [])
    crash_point("erasure.restored")
    return erasure


class _Restoring(NamedTuple):
    """The task that sends deltas of the history to staging."""

    open_staging: OpenStaging
    gateway: str
    seq: int

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the deltas in bounded messages; yield a row with the error if that fails."""
        prepare_worker()
        try:
            with self.open_staging() as store:
                for batch in batches:
                    for first in range(0, batch.num_rows, RESTORED_AT_ONCE):
                        some = batch.slice(first, RESTORED_AT_ONCE).to_pylist()
                        store.restore(self.gateway, self.seq, [row_delta(each) for each in some])
        except LakeSyncError as error:
            yield pa.RecordBatch.from_pydict({"failure": [failure_text(error)]})


def drop_frames(checkpoints_uri: str, gateway: str, below: int) -> list[str]:
    """Delete the frames of a gateway's checkpoints before an arrival, and return the deleted folders.

    Args:
        checkpoints_uri: the folder of all frames.
        gateway: the gateway's id.
        below: the arrival.
    """
    file_system, root = file_system_of(f"{checkpoints_uri.rstrip('/')}/{gateway}")
    gone = []
    for info in file_system.get_file_info(pafs.FileSelector(root, allow_not_found=True)):
        arrival = info.base_name.rpartition("-")[2]
        if info.type == pafs.FileType.Directory and arrival.isdecimal() and int(arrival) < below:
            file_system.delete_dir(info.path)
            gone.append(info.path)
    crash_point("erasure.frames")
    return gone


@lake_errors
def prove(spark: SparkSession, requests: Sequence[Erasure], tables: Iterable[str], names: LakeNames) -> SearchResult:
    """Search every data file of the history and of state tables for rows that requests of one gateway cover.

    A file with such rows that no snapshot names is deleted. Iceberg refuses a commit that could still add it.

    Args:
        spark: a session.
        requests: requests of one gateway.
        tables: the state tables.
        names: the lake's names.

    Raises:
        FlushError: a file cannot be read.
        LakeUnavailableError: Spark cannot be reached.
    """
    searched: list[str] = []
    left: list[Leftover] = []
    removed: dict[int, list[str]] = {}
    for table in (None, *tables):
        name = names.deltas if table is None else names.state(table)
        location = location_of(spark, name)
        searched.append(location)
        mine = [each for each in requests if table is None or each.client_id is not None or each.table == table]
        found = find_leftovers(spark, location, mine, history=table is None)
        in_use = {bare(row["file_path"]) for row in spark.table(f"{name}.all_files").select("file_path").collect()}
        left += [each for each in found if each.path in in_use]
        stray = [each for each in found if each.path not in in_use]
        remove(location, sorted({each.path for each in stray}))
        for each in stray:
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
