"""The checkpoints of all gateways. The assets `checkpoint_snapshots` and `checkpoint` and the erasure call it."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.fs as pafs
from pyspark.sql import functions as sf

from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.checkpoints.tags import CheckpointRetention
from lakehouse.file_systems import file_system_of
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
    """Make the checkpoint of each gateway that has deltas in the lake, all of its shards at one arrival.

    A gateway is skipped if it has more deltas than this run flushed, or if its rows still follow a change of rules. A
    gateway that fails does not stop the others, and keeps its checkpoint: a checkpoint without one of its tables would
    hide that table's rows from new clients.

    Args:
        spark: the run's session.
        store: the staging store, which records the checkpoints.
        run_state: the cut point of each gateway.
        config: how long the snapshots of checkpoints are kept, and the contracts of tables.
        directory_uri: the folder of all frames.
        on_failed: called with a gateway and its error. Without it all errors are raised at the end.
        gateways: make the checkpoints of these only; None: of all.

    Returns:
        The checkpoints that were made, and those that were kept because nothing has changed.

    Raises:
        ExceptionGroup: the errors of the gateways that failed, without `on_failed`.
    """
    own = config.namespaces.own
    registered_now = registered(store, own)
    made: list[Checkpoint] = []
    errors: dict[str, Exception] = {}
    in_the_lake = run_state.flushed()
    for gateway, cut_point in sorted(run_state.cut_points().items()):
        if gateway not in in_the_lake or cut_point.rules_version is None:
            continue
        if gateways is not None and gateway not in gateways:
            continue
        try:
            names = run_state.names_of(gateway)
            tables = _tables(spark, store, cut_point, names)
            if (reason := run_state.left_out(gateway, tables)) is not None:
                raise IntegrityError(reason)
            checkpoint = make_checkpoint(
                spark,
                store,
                cut_point,
                [_schema(registered_now, store, gateway, table, config) for table in sorted(tables)],
                directory_uri=directory_uri,
                names=names,
                kept=CheckpointRetention.of(config.maintenance),
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
    """Return the tables that a gateway's deltas in a range of arrivals name, registered or not.

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
    """Return a gateway's tables: registered, in its newest checkpoint, or named by a delta since (without a schema)."""
    gateway, arrival = cut_point.gateway, cut_point.arrival
    newest = store.newest_checkpoint(gateway)
    known = {table.table for table in newest.tables} if newest else set()
    since = newest.arrival if newest else 0
    named = tables_named(spark, gateway, since, arrival, names) if since < arrival else set()
    return known | named | store.gateway_config(gateway).schemas.keys()


def _schema(
    registered_now: SchemaSnapshot, store: GatewayStore, gateway: str, table: str, config: Config
) -> TableSchema:
    """Return a table's schema: of a frozen table the gateway's own, so that no other gateway's schema stops it."""
    if config.contracts.get(table) == "freeze":
        known = store.gateway_config(gateway).schemas.get(table)
        return known.schema if known is not None else TableSchema(table, columns=())
    return registered_now.state(table, config.namespaces.own.get(gateway, ""))


KEPT_HOURS = 24.0
"""How long the frames are kept after a newer checkpoint was published. No download takes so long."""

_FOLDER = re.compile(r"(\d+)-(\d+)")
_HOUR_NS = 3_600_000_000_000


class _Folder(NamedTuple):
    epoch: int
    arrival: int
    path: str


def drop_old_frames(directory_uri: str, newest: Checkpoint, now_ms: int, kept_hours: float = KEPT_HOURS) -> list[str]:
    """Delete the frames of a gateway's superseded checkpoints, and return the names of the deleted folders.

    A checkpoint is superseded once the frames of the next one were written. Frames that a killed run left are treated
    in the same way. The newest checkpoint and later frames are kept.

    Args:
        directory_uri: the folder of all frames.
        newest: the gateway's newest published checkpoint.
        now_ms: the clock by which files are dated, in milliseconds.
        kept_hours: hours for which superseded frames are kept.
    """
    system, root = file_system_of(f"{directory_uri.rstrip('/')}/{newest.gateway}")
    before = now_ms * 1_000_000 - round(kept_hours * _HOUR_NS)
    here = (newest.epoch, newest.arrival)
    folders = sorted(folder for folder in _folders(system, root) if (folder.epoch, folder.arrival) <= here)
    removed = []
    for folder, successor in pairwise(folders):
        if (written := _written_ns(system, successor.path)) is not None and written < before:
            system.delete_dir(folder.path)
            removed.append(folder.path.rpartition("/")[2])
    return removed


def _folders(system: Any, root: str) -> list[_Folder]:
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
