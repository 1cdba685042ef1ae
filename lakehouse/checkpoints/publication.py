"""Makes the checkpoints of all gateways, one after the other, and deletes the files of old ones.

A gateway is one app's stream of deltas (changes of rows). A *checkpoint* is all its rows as of one arrival (the
gateway's timestamp of a push): files with the visible rows as frames (protobuf messages), from which new clients start.
The arrival is called the gateway's *cut point*: all pushes from before the run arrived at or before it. The assets
`checkpoint_snapshots` and `checkpoint` call `make_checkpoints`. An erasure calls it too, and `delete_checkpoint_files`,
because older checkpoints still have the erased values.

A checkpoint is made from Iceberg snapshots of the gateway's *state tables*, the current rows of its synced tables. Sync
rules, which decide what a client may see, have a version; a checkpoint is served under its version only.
"""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.fs as pafs
from pyspark.sql import functions as sf

from lakehouse.checkpoints.checkpoint import make_checkpoint, merge_tables
from lakehouse.data_files import parse_uri
from lakehouse.history.decoding import day_of
from lakehouse.schema_snapshot import SchemaSnapshot, registered
from lakehouse.spark_errors import lake_errors
from lakesync.model.errors import IntegrityError
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import SparkSession

    from lakehouse.run_state import RunState
    from lakehouse.table_definitions import LakeNames
    from lakesync.config import Config
    from lakesync.staging.records import Checkpoint, CutPoint
    from lakesync.staging.store.pipeline import CheckpointStore, GatewayStore, PipelineStore


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

    A gateway is skipped if it has unflushed deltas before its cut point: `run_state` has none for it then. It is also
    skipped if a change of sync rules is still being applied to its rows. A gateway that fails does not stop the others,
    and keeps its previous checkpoint: a checkpoint without one of its tables would hide that table's rows from new
    clients.

    Args:
        spark: the run's Spark session.
        store: the staging store, which records the checkpoints.
        run_state: has the cut point of each gateway.
        config: says how long the snapshots of checkpoints are kept, and has the contracts of tables: what happens to
            columns that are registered later.
        directory_uri: URI of the folder with the checkpoints of all gateways.
        on_failed: called with a gateway and its error. If it is None, all errors are raised at the end.
        gateways: ids of the gateways whose checkpoints are made; None for all.

    Returns:
        The newest checkpoint of each gateway whose checkpoint was published: a new one, or the previous one if nothing
        has changed. A gateway may be among them that failed later, when its old files were deleted.

    Raises:
        ExceptionGroup: the errors of the gateways that failed, if `on_failed` is None.
    """
    registered_now = registered(store, config.namespaces.own)
    made: list[Checkpoint] = []
    errors: dict[str, Exception] = {}
    flushed = run_state.flushed()  # the gateways that have deltas in the lake
    for gateway, cut_point in sorted(run_state.cut_points().items()):
        if gateway not in flushed or cut_point.rules_version is None:  # None while changed rules are being applied
            continue
        if gateways is not None and gateway not in gateways:
            continue
        try:
            names = run_state.names_of(gateway)
            tables = _tables(spark, store, cut_point, names)
            schemas = [_schema(registered_now, store, gateway, table, config) for table in sorted(tables)]
            if (reason := run_state.checkpoint_obstacle(gateway, tables)) is not None:
                # Only this step merges tables without a registered schema: the faults of others must not delay them. A
                # merge of a faulty history would move their marks past missing deltas.
                if not run_state.gateways_with_faulty_history & {gateway, None}:
                    unregistered = [schema for schema in schemas if not schema.columns]
                    merge_tables(spark, cut_point, unregistered, names=names, contracts=config.contracts)
                raise IntegrityError(reason)
            checkpoint = make_checkpoint(
                spark,
                store,
                cut_point,
                schemas,
                directory_uri=directory_uri,
                names=names,
                section=config.maintenance,
                contracts=config.contracts,
            )
            made.append(checkpoint)
            delete_superseded_files(directory_uri, checkpoint, time.time_ns() // 1_000_000)
        except Exception as error:
            error.add_note(f"in the checkpoint of gateway {gateway} at {cut_point.arrival}")
            errors[gateway] = error
    if errors and on_failed is None:
        raise ExceptionGroup("checkpoints failed", list(errors.values()))
    if on_failed is not None:
        for gateway, failure in errors.items():
            on_failed(gateway, failure)
    return made


_KEPT_NS = 24 * 3_600_000_000_000
"""Nanoseconds for which a checkpoint's files stay after a newer one was written: a day. No download takes so long."""

_FOLDER = re.compile(r"(\d+)-(\d+)")
"""Name of a checkpoint's folder: `EPOCH-ARRIVAL`; the epoch identifies the staging store's copy of the gateway."""


class _Folder(NamedTuple):
    """The folder of one checkpoint's files."""

    epoch: int
    arrival: int
    path: str


def delete_superseded_files(directory_uri: str, newest: Checkpoint, now_ms: int) -> list[str]:
    """Delete the files of a gateway's superseded checkpoints, and return the names of the deleted folders.

    A checkpoint is superseded once the files of the next one were written, whether that was published or not. The
    newest published checkpoint is kept, and so are folders of later arrivals, which may be in the making.

    Args:
        directory_uri: URI of the folder with the checkpoints of all gateways.
        newest: the gateway's newest published checkpoint.
        now_ms: wall time in milliseconds since 1970, by the clock that dates the files.
    """
    system, folders = _folders(directory_uri, newest.gateway)
    limit_ns = now_ms * 1_000_000 - _KEPT_NS
    published = (newest.epoch, newest.arrival)
    candidates = sorted(folder for folder in folders if (folder.epoch, folder.arrival) <= published)
    removed = []
    for folder, successor in pairwise(candidates):
        if (written_ns := _written_ns(system, successor.path)) is not None and written_ns < limit_ns:
            system.delete_dir(folder.path)
            removed.append(folder.path.rpartition("/")[2])
    return removed


def delete_checkpoint_files(directory_uri: str, gateway: str, below: int) -> list[str]:
    """Delete the files of a gateway's checkpoints from before an arrival, and return the paths of the deleted folders.

    Args:
        directory_uri: URI of the folder with the checkpoints of all gateways.
        gateway: the gateway's id.
        below: the arrival; a checkpoint at it or later stays.
    """
    system, folders = _folders(directory_uri, gateway)
    old = [folder.path for folder in folders if folder.arrival < below]
    for path in old:
        system.delete_dir(path)
    return old


def _tables(spark: SparkSession, store: CheckpointStore, cut_point: CutPoint, names: LakeNames) -> set[str]:
    """Return a gateway's tables: those with a registered schema, in its newest checkpoint, or of deltas since then."""
    gateway, arrival = cut_point.gateway, cut_point.arrival
    newest = store.newest_checkpoint(gateway)
    checkpointed = {table.table for table in newest.tables} if newest else set()
    since = newest.arrival if newest else 0
    flushed_since = _tables_with_deltas(spark, gateway, since, arrival, names) if since < arrival else set()
    return checkpointed | flushed_since | store.gateway_config(gateway).schemas.keys()


@lake_errors
def _tables_with_deltas(spark: SparkSession, gateway: str, after: int, upto: int, names: LakeNames) -> set[str]:
    """Return the tables of a gateway's deltas after an arrival up to another one, registered or not."""
    deltas = spark.table(names.deltas).where(
        (sf.col("gateway") == gateway)
        & sf.col("arrival").between(after + 1, upto)
        & sf.col("day").between(day_of(after), day_of(upto))
    )
    return {row["table_name"] for row in deltas.select("table_name").distinct().collect()}


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


def _folders(directory_uri: str, gateway: str) -> tuple[pafs.FileSystem, list[_Folder]]:
    """Return the folders of a gateway's checkpoints, and their file system."""
    system, root = parse_uri(f"{directory_uri.rstrip('/')}/{gateway}")
    infos = system.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    paths_and_matches = ((info.path, _FOLDER.fullmatch(info.base_name)) for info in infos)
    return system, [_Folder(int(match[1]), int(match[2]), path) for path, match in paths_and_matches if match]


def _written_ns(system: pafs.FileSystem, path: str) -> int | None:
    """Return when the newest file of a folder was written, in nanoseconds; None if it has no file."""
    infos = system.get_file_info(pafs.FileSelector(path, recursive=True))
    if not any(info.is_file for info in infos):
        return None
    newest: int = max(info.mtime_ns for info in infos if info.mtime_ns is not None)
    return newest
