"""Makes the checkpoints of all gateways, one after the other, deletes superseded files, and checks the newest ones.

New clients of a gateway start from its checkpoint: all its rows as of one arrival (the gateway's timestamp of a push),
which is called the cut point and includes every push from before the run. The files of a checkpoint have the visible
rows as frames (protobuf messages). The assets `checkpoint_snapshots` and `checkpoint`, and the erasure, make and delete
checkpoints here. The check of the asset `checkpoint` compares a published checkpoint's files with the Iceberg snapshots
from which they were made.
"""

from __future__ import annotations

import random
import re
import time
from hashlib import sha256
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import functions as sf

from lakehouse.checkpoints.checkpoint import CheckpointRetention, make_checkpoint
from lakehouse.data_files import file_system_of
from lakehouse.history.decoding import day_of
from lakehouse.schema_snapshot import SchemaSnapshot, registered
from lakehouse.spark_errors import brief, is_lost, is_unanswered, lake_errors
from lakehouse.table_definitions import NAMES, LakeNames, at_snapshot
from lakehouse.tables.verification import FRAME_COLUMNS, stored_row
from lakehouse.task_runner import in_parallel, in_tasks
from lakesync.adapters.digests import ARRIVALS_PER_DAY
from lakesync.feed import render
from lakesync.model.errors import IntegrityError, ValidationError
from lakesync.model.schema import TableSchema
from lakesync.model.types import SyncResponse
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response, encode_response

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from lakehouse.run_state import RunState
    from lakesync.config import Config
    from lakesync.model.types import RowDelta
    from lakesync.staging.records import Checkpoint, CheckpointTable, CutPoint
    from lakesync.staging.store.pipeline import CheckpointStore, GatewayStore, PipelineStore

_FRAME_NAMES = ("row_id", "sent", "fault")
"""Columns read from frames: row id, checksum of the deltas that a client is sent, and the error of a bad file.

A row has either the first two or the third; the others are null.
"""
_SAME = "same"
"""Verdict on a row that is equal in the snapshot and in the frames."""
SAMPLE = 200
"""Number of rows of a table whose values are compared."""


def make_checkpoints(
    spark: SparkSession,
    store: PipelineStore,
    run_state: RunState,
    config: Config,
    directory_uri: str,
    *,
    on_failed: Callable[[str, Exception], object] | None = None,
    gateways: Collection[str] | None = None,
) -> list[Checkpoint]:
    """Make the checkpoint of each gateway that has deltas in the lake, with the tables of all shards at one arrival.

    A gateway is skipped if it has unflushed deltas before its cut point, or if a change of sync rules is still being
    applied to its rows. A gateway that fails does not stop the others, and keeps its previous checkpoint: a checkpoint
    without one of its tables would hide that table's rows from new clients.

    Args:
        spark: the run's Spark session.
        store: the staging store, which records the checkpoints.
        run_state: has the cut point of each gateway.
        config: says how long the snapshots of checkpoints are kept, and has the contracts of tables.
        directory_uri: URI of the folder with the checkpoints of all gateways.
        on_failed: called with a gateway and its error. If it is None, all errors are raised at the end.
        gateways: ids of the gateways whose checkpoints are made; None for all.

    Returns:
        The newest checkpoint of each gateway that did not fail: a new one, or the previous one if nothing has changed.

    Raises:
        ExceptionGroup: the errors of the gateways that failed, if `on_failed` is None.
    """
    registered_now = registered(store, config.namespaces.own)
    made: list[Checkpoint] = []
    errors: dict[str, Exception] = {}
    flushed = run_state.flushed()  # without gateways that have unflushed deltas before their cut points
    for gateway, cut_point in sorted(run_state.cut_points().items()):
        if gateway not in flushed or cut_point.rules_version is None:  # None while changed rules are being applied
            continue
        if gateways is not None and gateway not in gateways:
            continue
        try:
            names = run_state.names_of(gateway)
            tables = _tables(spark, store, cut_point, names)
            if (reason := run_state.checkpoint_obstacle(gateway, tables)) is not None:
                raise IntegrityError(reason)
            checkpoint = make_checkpoint(
                spark,
                store,
                cut_point,
                [_schema(registered_now, store, gateway, table, config) for table in sorted(tables)],
                directory_uri=directory_uri,
                names=names,
                retention=CheckpointRetention.of(config.maintenance),
                contracts=config.contracts,
            )
        except Exception as error:
            error.add_note(f"in the checkpoint of gateway {gateway} at {cut_point.arrival}")
            errors[gateway] = error
        else:
            made.append(checkpoint)
            drop_old_frames(directory_uri, checkpoint, time.time_ns() // 1_000_000)
    if errors and on_failed is None:
        raise ExceptionGroup("checkpoints failed", list(errors.values()))
    if on_failed is not None:
        for gateway, failure in errors.items():
            on_failed(gateway, failure)
    return made


@lake_errors
def tables_named(spark: SparkSession, gateway: str, after: int, upto: int, names: LakeNames) -> set[str]:
    """Return the tables that a gateway's deltas in a range of arrivals belong to, registered or not.

    Args:
        spark: an open Spark session.
        gateway: the gateway's id.
        after: the arrival after which the range begins.
        upto: the last arrival of the range.
        names: catalogue and namespaces of the lake's tables.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    deltas = spark.table(names.deltas).where(
        (sf.col("gateway") == gateway)
        & sf.col("arrival").between(after + 1, upto)
        & sf.col("day").between(day_of(after), day_of(upto))
    )
    return {row["table_name"] for row in deltas.select("table_name").distinct().collect()}


def _tables(spark: SparkSession, store: CheckpointStore, cut_point: CutPoint, names: LakeNames) -> set[str]:
    """Return a gateway's tables: registered ones, those in its newest checkpoint, and those of deltas since then."""
    gateway, arrival = cut_point.gateway, cut_point.arrival
    newest = store.newest_checkpoint(gateway)
    checkpointed = {table.table for table in newest.tables} if newest else set()
    since = newest.arrival if newest else 0
    flushed_since = tables_named(spark, gateway, since, arrival, names) if since < arrival else set()
    return checkpointed | flushed_since | store.gateway_config(gateway).schemas.keys()


def _schema(
    registered_now: SchemaSnapshot, store: GatewayStore, gateway: str, table: str, config: Config
) -> TableSchema:
    """Return a table's schema: the union of those that the gateways with this state table have registered.

    For a table with the contract `freeze`, which rejects new columns, it is the gateway's own schema: further columns
    of other gateways would stop the merge.
    """
    if config.contracts.get(table) == "freeze":
        own = store.gateway_config(gateway).schemas.get(table)
        return own.schema if own is not None else TableSchema(table, columns=())
    return registered_now.state(table, config.namespaces.own.get(gateway, ""))


_KEPT_NS = 24 * 3_600_000_000_000
"""Nanoseconds for which a checkpoint's files stay after a newer one was written: a day. No download takes so long."""

_FOLDER = re.compile(r"(\d+)-(\d+)")
"""Name of a checkpoint's folder: `EPOCH-ARRIVAL`."""


class _Folder(NamedTuple):
    """The folder of one checkpoint's files."""

    epoch: int
    arrival: int
    path: str


def drop_old_frames(directory_uri: str, newest: Checkpoint, now_ms: int) -> list[str]:
    """Delete the files of a gateway's superseded checkpoints, and return the names of the deleted folders.

    A checkpoint is superseded once the files of the next one were written, whether that was published or not. The
    newest published checkpoint is kept, and so are folders of later arrivals, which may be in the making.

    Args:
        directory_uri: URI of the folder with the checkpoints of all gateways.
        newest: the gateway's newest published checkpoint.
        now_ms: wall time in milliseconds since 1970, by the clock that dates the files.
    """
    system, root = file_system_of(f"{directory_uri.rstrip('/')}/{newest.gateway}")
    limit_ns = now_ms * 1_000_000 - _KEPT_NS
    published = (newest.epoch, newest.arrival)
    folders = sorted(folder for folder in _folders(system, root) if (folder.epoch, folder.arrival) <= published)
    removed = []
    for folder, successor in pairwise(folders):
        if (written_ns := _written_ns(system, successor.path)) is not None and written_ns < limit_ns:
            system.delete_dir(folder.path)
            removed.append(folder.path.rpartition("/")[2])
    return removed


def _folders(system: Any, root: str) -> list[_Folder]:
    """Return the folders of a gateway's checkpoints."""
    selector = pafs.FileSelector(root, allow_not_found=True)
    found = ((info.path, _FOLDER.fullmatch(info.base_name)) for info in system.get_file_info(selector))
    return [_Folder(int(match[1]), int(match[2]), path) for path, match in found if match]


def _written_ns(system: Any, path: str) -> int | None:
    """Return when the newest file of a folder was written, in nanoseconds; None if it has no file."""
    infos = system.get_file_info(pafs.FileSelector(path, recursive=True))
    if not any(info.is_file for info in infos):
        return None
    newest: int = max(info.mtime_ns for info in infos if info.mtime_ns is not None)
    return newest


class CheckpointDifference(msgspec.Struct, frozen=True):
    """A difference between a table's frames and its snapshot."""

    gateway: str
    table: str
    what: str
    """Description of the difference, for an operator."""
    day: str = ""
    """UTC day of arrival of the rows' newest deltas, `YYYY-MM-DD`; empty if the snapshot does not have the rows."""


@lake_errors
def checkpoint_differences(
    spark: SparkSession, checkpoint: Checkpoint, names: LakeNames = NAMES, *, seed: int = 0, all_rows: bool = False
) -> list[CheckpointDifference]:
    """Return the differences between a checkpoint's frames and its snapshots; empty if they are equal.

    It compares each table's number of rows and bytes of files, and the rows of one frame, or of all frames.

    Args:
        spark: an open Spark session.
        checkpoint: a published checkpoint.
        names: catalogue and namespaces of the lake's tables.
        seed: chooses the frame and the rows to compare.
        all_rows: True to compare every row of every frame.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """

    def differences_of(table: CheckpointTable) -> list[CheckpointDifference]:
        rows = at_snapshot(spark, names.state(table.table), table.snapshot_id).where(
            (sf.col("_gateway") == checkpoint.gateway) & ~sf.col("_gone")
        )
        try:
            if all_rows:
                return list(_differences_of_all_rows(spark, checkpoint, table, rows))
            return list(_differences_of_sample(checkpoint, table, rows, random.Random(seed)))  # noqa: S311 no secret
        except Exception as error:
            if is_lost(error) or is_unanswered(error):
                raise
            return [_difference(checkpoint, table, f"the snapshot {table.snapshot_id} cannot be read: {brief(error)}")]

    found = in_parallel(spark, differences_of, checkpoint.tables)
    return [difference for differences in found for difference in differences]


def _differences_of_sample(
    checkpoint: Checkpoint, table: CheckpointTable, rows: DataFrame, rng: random.Random
) -> Iterator[CheckpointDifference]:
    """Yield the differences of the totals, and of a sample of rows in the first frame of one file."""
    yield from _differences_of_totals(checkpoint, table, rows.count())
    if table.frames:
        uri = rng.choice(table.frames)
        try:
            deltas = _first_frame(uri)
        except (OSError, ValidationError) as error:
            yield _difference(checkpoint, table, f"{uri} cannot be read: {error}")
        else:
            for what in _differences_of_rows(rows, table.table, uri, deltas, rng):
                yield _difference(checkpoint, table, what)


def _differences_of_all_rows(
    spark: SparkSession, checkpoint: Checkpoint, table: CheckpointTable, rows: DataFrame
) -> Iterator[CheckpointDifference]:
    """Yield the differences of all rows of a table, found by checksums of the deltas that a client is sent."""

    def checksums_of_snapshot(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            states = [stored_row(table.table, row) for row in batch.to_pylist()]
            columns = ([row.row_id for row in states], [row.arrival for row in states])
            sums = [_checksum(render.insert(row)) for row in states]
            yield pa.record_batch([*map(pa.array, columns), pa.array(sums, pa.binary())], ["row_id", "arrival", "sum"])

    def checksums_of_file(number: int) -> Iterator[pa.RecordBatch]:
        for rows_of_frame, fault in _rows_of_file(table.frames[number], checkpoint.arrival):
            row_ids: list[str | None] = [row_id for row_id, _ in rows_of_frame]
            sums: list[bytes | None] = [checksum for _, checksum in rows_of_frame]
            faults: list[str | None] = [None] * len(rows_of_frame)
            if fault is not None:
                row_ids, sums, faults = [*row_ids, None], [*sums, None], [*faults, fault]
            columns = [pa.array(row_ids, pa.string()), pa.array(sums, pa.binary()), pa.array(faults, pa.string())]
            yield pa.record_batch(columns, _FRAME_NAMES)

    stored = rows.select(*FRAME_COLUMNS).mapInArrow(checksums_of_snapshot, "row_id string, arrival bigint, sum binary")
    sent = (
        in_tasks(spark, len(table.frames), checksums_of_file, "row_id string, sent binary, fault string")
        .groupBy("row_id")
        .agg(sf.max("sent").alias("sent"), sf.count("*").alias("copies"), sf.collect_set("fault").alias("faults"))
    )
    verdict = (  # null `sum`: the snapshot does not have the row; null `sent`: the frames do not have it
        sf.when(sf.col("sum").isNull(), "surplus")
        .when(sf.col("sent").isNull(), "missing")
        .when(sf.col("copies") > 1, "there more than once")
        .when(sf.col("sum") != sf.col("sent"), "altered")
        .otherwise(_SAME)
    )
    day = f"cast(date_add(DATE'1970-01-01', cast(arrival div {ARRIVALS_PER_DAY} as int)) as string)"
    found = (
        stored.join(sent, "row_id", "full_outer")
        .select(verdict.alias("verdict"), sf.expr(day).alias("day"), "row_id", "faults", sf.col("sum").isNotNull())
        .toDF("verdict", "day", "row_id", "faults", "is_stored")
        .groupBy("day", "verdict")
        .agg(
            sf.count("row_id").alias("rows"),
            sf.min("row_id").alias("example"),
            sf.flatten(sf.collect_set("faults")).alias("faults"),
            sf.sum(sf.col("is_stored").cast("int")).alias("stored"),
        )
        .collect()
    )
    yield from _differences_of_totals(checkpoint, table, sum(row["stored"] or 0 for row in found))
    for row in sorted(found, key=lambda each: (each["day"] or "", each["verdict"])):
        for fault in row["faults"]:
            yield _difference(checkpoint, table, fault)
        if row["verdict"] != _SAME and row["rows"]:
            what = f"{row['rows']} rows of the frames are {row['verdict']}, such as {row['example']!r}"
            yield _difference(checkpoint, table, what, row["day"] or "")


def _difference(checkpoint: Checkpoint, table: CheckpointTable, what: str, day: str = "") -> CheckpointDifference:
    """Return a difference of one of the checkpoint's tables."""
    return CheckpointDifference(checkpoint.gateway, table.table, what, day)


def _differences_of_totals(
    checkpoint: Checkpoint, table: CheckpointTable, count: int
) -> Iterator[CheckpointDifference]:
    """Yield the differences between the snapshot's and the frames' numbers of rows, and of the files' sizes."""
    if count != table.rows:
        what = f"the snapshot {table.snapshot_id} has {count} visible rows, the frames {table.rows}"
        yield _difference(checkpoint, table, what)
    size = sum(_size(uri) for uri in table.frames)
    if size != table.bytes:
        yield _difference(checkpoint, table, f"the frames' files have {size} bytes, {table.bytes} were written")


def _rows_of_file(uri: str, arrival: int) -> Iterator[tuple[list[tuple[str, bytes]], str | None]]:
    """Yield `(rows, fault)` for each frame of a file: row ids with checksums, and the error in the file or None."""
    file_system, path = file_system_of(uri)
    try:
        with file_system.open_input_stream(path) as stream:
            for message in read_checkpoint(stream):
                response = decode_response(message)
                is_of_checkpoint = response.server_hlc == arrival
                rows = [
                    (row_id, _checksum(list(deltas)))
                    for row_id, deltas in groupby(response.deltas, key=lambda delta: delta.row_id)
                ]
                yield rows, None if is_of_checkpoint else f"{uri} has frames of arrival {response.server_hlc}"
    except (OSError, ValidationError) as error:
        yield [], f"{uri} cannot be read: {error}"


def _checksum(deltas: list[RowDelta]) -> bytes:
    """Return a checksum of deltas as a checkpoint encodes them."""
    return sha256(encode_response(SyncResponse(tuple(deltas), 0))).digest()[:16]


def _differences_of_rows(
    snapshot: DataFrame, table: str, uri: str, deltas: tuple[RowDelta, ...], rng: random.Random
) -> Iterator[str]:
    """Yield the differences of a sample of the rows in a frame."""
    deltas_in_frame = {row: list(of_row) for row, of_row in groupby(deltas, key=lambda delta: delta.row_id)}
    sampled = rng.sample(sorted(deltas_in_frame), min(SAMPLE, len(deltas_in_frame)))
    stored = {
        row["_row"]: render.insert(stored_row(table, row))
        for row in snapshot.where(sf.col("_row").isin(sampled)).select(*FRAME_COLUMNS).toArrow().to_pylist()
    }
    for row in sampled:
        if deltas_in_frame[row] != stored.get(row):
            yield f"row {row!r} in {uri} is not the snapshot's"


def _size(uri: str) -> int:
    """Return a file's size in bytes; 0 if there is no such file."""
    file_system, path = file_system_of(uri)
    return file_system.get_file_info(path).size or 0


def _first_frame(uri: str) -> tuple[RowDelta, ...]:
    """Return the deltas of the first frame in a file."""
    file_system, path = file_system_of(uri)
    with file_system.open_input_stream(path) as stream:
        return decode_response(next(read_checkpoint(stream))).deltas
