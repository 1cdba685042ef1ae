"""Makes one gateway's checkpoint: all its rows at one arrival, as files of frames for the first sync of new clients.

A gateway is one app's stream of changes; an arrival is its timestamp for a push. *Staging* is the store that pushes are
committed to; a *shard* is a staging store for some of the tables, and an *epoch* identifies staging's copy of a
gateway: a rebuild begins another. A flush moves deltas (changes of rows) from staging to the *history*, an Iceberg
table. *Sync rules* decide which rows a client may see.

A checkpoint is made in three steps: the gateway's state tables (the current rows) are merged up to the arrival; their
Iceberg snapshots are tagged, so that they do not expire; their rows are written as frames (protobuf messages). The tags
of a checkpoint last for hours, those of the first checkpoint of a day for days, and those of the newest checkpoint
until there is a newer one. `lakehouse.checkpoints.publication` calls `make_checkpoint` for each gateway at the end of a
flush; the maintenance of a state table calls `tag_newest`.
"""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lakehouse.checkpoints.frame_files import WRITTEN, frame_parts, link_frames
from lakehouse.data_files import DataFile
from lakehouse.gateways_table import store_config
from lakehouse.history.decoding import day_of
from lakehouse.spark_errors import lake_errors
from lakehouse.table_access import open_table, planned_files
from lakehouse.table_definitions import NAMES, LakeNames
from lakehouse.tables.merging import merge_table
from lakehouse.task_runner import in_tasks, in_threads
from lakesync.analysis.catalogue import CHECKPOINT_TAG
from lakesync.analysis.scans import condition
from lakesync.config.pipeline_sections import MaintenanceSection
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import IntegrityError
from lakesync.staging.records import Checkpoint, CheckpointTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakesync.config.pipeline_sections import Contract
    from lakesync.model.schema import TableSchema
    from lakesync.staging.records import CutPoint
    from lakesync.staging.store.pipeline import ErasureStore, PipelineStore


NEWEST_TAG = "held-"
"""Prefix of a tag that keeps a newest checkpoint's snapshot after its tag `CHECKPOINT_TAG` has expired. The gateway id
follows."""
_FOR_EVER_DAYS = 36_500
"""Days for which a tag lasts that is never meant to end."""


@lake_errors
def tag_newest(
    spark: SparkSession, names: LakeNames, table: str, checkpoints: Iterable[Checkpoint], section: MaintenanceSection
) -> int:
    """Tag the snapshots of newest checkpoints that are old, so that they do not expire; return the number of new tags.

    A checkpoint is old after half of `checkpoint_retention_hours`, the time after which its first tag may expire. It is
    served until there is a newer one, and audits compare it with the snapshots that it was made from.

    Args:
        spark: an open Spark session.
        names: catalogue and namespaces of the lake's tables.
        table: the state table's name.
        checkpoints: the newest checkpoint of each gateway.
        section: says how long the tags of checkpoints last.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
    """
    half_retention_seconds = section.checkpoint_retention_hours * 3600 / 2
    old_before_ms = (time.time() - half_retention_seconds) * 1000
    old = {  # tag → the snapshot that it should mark
        f"{NEWEST_TAG}{checkpoint.gateway}": part.snapshot_id
        for checkpoint in checkpoints
        for part in checkpoint.tables
        if part.table == table and checkpoint.created_ms < old_before_ms
    }
    if not old:
        return 0
    name = names.state(table)
    refs = {
        row["name"]: row["snapshot_id"] for row in spark.table(f"{name}.refs").select("name", "snapshot_id").collect()
    }
    existing = {row["snapshot_id"] for row in spark.table(f"{name}.snapshots").select("snapshot_id").collect()}
    changed = {tag: snapshot for tag, snapshot in old.items() if refs.get(tag) != snapshot and snapshot in existing}
    for tag, snapshot in changed.items():
        spark.sql(
            f"ALTER TABLE {name} CREATE OR REPLACE TAG `{tag}` AS OF VERSION {snapshot} RETAIN {_FOR_EVER_DAYS} DAYS"
        )
    return len(changed)


def merge_tables(
    spark: SparkSession,
    cut_point: CutPoint,
    schemas: Iterable[TableSchema],
    *,
    names: LakeNames,
    contracts: Mapping[str, Contract],
) -> dict[str, int]:
    """Merge those of a gateway's tables that are behind its cut point.

    Args:
        spark: an open Spark session.
        cut_point: the gateway and the arrival. All deltas of the gateway up to it must be in the history.
        schemas: the schemas of the tables.
        names: catalogue and namespaces of the lake's tables.
        contracts: table → what happens to columns that are registered later; `evolve` for tables that are missing.

    Returns:
        Table → its snapshot, ordered by table and without empty tables.

    Raises:
        SchemaError, LakeUnavailableError: as `merge_table`.
    """
    schemas = sorted(schemas, key=lambda schema: schema.table)

    def merged_snapshot(schema: TableSchema) -> int | None:
        """Merge one table up to the arrival, and return its snapshot; None if it is empty."""
        contract = contracts.get(schema.table, "evolve")
        upto = {cut_point.gateway: cut_point.arrival}
        return merge_table(spark, schema, upto, names=names, contract=contract).snapshot_id

    snapshot_ids = in_threads(spark, merged_snapshot, schemas)
    snapshots = zip((schema.table for schema in schemas), snapshot_ids, strict=True)
    return {table: snapshot for table, snapshot in snapshots if snapshot is not None}


def make_checkpoint(
    spark: SparkSession,
    store: PipelineStore,
    cut_point: CutPoint,
    schemas: Collection[TableSchema],
    *,
    directory_uri: str,
    names: LakeNames = NAMES,
    section: MaintenanceSection = MaintenanceSection(),  # noqa: B008 frozen
    contracts: Mapping[str, Contract] = MappingProxyType({}),
) -> Checkpoint:
    """Make and publish a gateway's checkpoint at a cut point, an arrival at which no push is divided.

    It merges the tables that are behind, tags their snapshots and writes the frames to
    `directory_uri/GATEWAY/EPOCH-ARRIVAL/`. Frames of a table that has not changed since the newest checkpoint are
    linked instead of written. Nothing is written if a checkpoint at this or a later arrival is published already, or if
    no table has changed since the newest checkpoint. A repeat after a crash is safe.

    Args:
        spark: an open Spark session.
        store: the staging store, which records the checkpoint.
        cut_point: the gateway and the arrival. All deltas of the gateway up to it must be in the history.
        schemas: the schemas of all the gateway's tables.
        directory_uri: URI of the folder with the checkpoints of all gateways, which Spark's tasks can write.
        names: catalogue and namespaces of the lake's tables.
        section: says how long the tagged snapshots are kept. Time travel does not need them, because it merges the
            history.
        contracts: table → what happens to columns that are registered later; `evolve` for tables that are missing.

    Returns:
        The new checkpoint, or the published one if nothing was written.

    Raises:
        IntegrityError: a table has deltas later than the cut point, or a change of sync rules was not yet applied to
            all rows at the cut point. Make the checkpoint at a later cut point.
        SchemaError, LakeUnavailableError: as `merge_table`.
    """
    gateway, arrival = cut_point.gateway, cut_point.arrival
    if cut_point.rules_version is None:
        raise IntegrityError(
            f"at {arrival} the rows of {gateway} did not follow the changed rules yet; make the checkpoint at a later "
            "arrival"
        )
    # before the first merge, so that a lost staging store can be rebuilt from the lake
    store_config(spark, gateway, store.gateway_config(gateway), store.connectors(gateway), names)
    newest = store.newest_checkpoint(gateway)
    if newest is not None and newest.arrival >= arrival:
        return newest
    not_empty = merge_tables(spark, cut_point, schemas, names=names, contracts=contracts)
    before = _reusable(store, newest, cut_point)
    if before is not None and {each.table: each.snapshot_id for each in before.tables} == not_empty:
        return before  # no table has changed
    target = _Target(
        gateway,
        arrival,
        f"{directory_uri.rstrip('/')}/{gateway}/{cut_point.epoch}-{arrival}",
        _retention_clause(newest, arrival, section),
    )
    tables_before = {each.table: each for each in before.tables} if before is not None else {}

    def with_frames(table: str) -> CheckpointTable:
        return _table_frames(spark, table, not_empty[table], target, tables_before.get(table), names)

    tables = in_threads(spark, with_frames, not_empty)
    crash_point("checkpoint.written")  # tests kill the process here
    checkpoint = Checkpoint(
        gateway,
        cut_point.epoch,
        arrival,
        cut_point.rules_version,
        tuple(tables),
        created_ms=time.time_ns() // 1_000_000,
        shards=cut_point.shards,
    )
    published = store.publish_checkpoint(checkpoint)
    crash_point("checkpoint.published")
    if published:
        return checkpoint
    later = store.newest_checkpoint(gateway)
    if later is None:
        raise IntegrityError(
            f"staging rejected the checkpoint of {gateway} at {arrival} and has no later one; make it again"
        )
    return later


class _Target(NamedTuple):
    """The checkpoint that is made, and where its frames are written."""

    gateway: str
    arrival: int
    directory: str
    """URI of the checkpoint's folder."""
    retention_clause: str
    """How long its tags last, as an SQL clause."""


def _retention_clause(newest: Checkpoint | None, arrival: int, section: MaintenanceSection) -> str:
    """Return how long the tags of a new checkpoint last, as an SQL clause.

    Args:
        newest: the gateway's checkpoint before the new one; None if this is its first.
        arrival: the arrival of the new checkpoint.
        section: says how long the tags of checkpoints last.
    """
    if newest is None or day_of(newest.arrival) != day_of(arrival):  # the first of its day
        return f"{section.daily_checkpoint_retention_days} DAYS"
    return f"{section.checkpoint_retention_hours} HOURS"


def _reusable(store: ErasureStore, newest: Checkpoint | None, cut_point: CutPoint) -> Checkpoint | None:
    """Return the newest checkpoint if frames of it may be linked into a new one, otherwise None.

    They may not if the sync rules or the shards have changed since, if data were erased, or if staging was rebuilt,
    which begins another epoch.
    """
    if newest is None or (newest.epoch, newest.rules_version, newest.shards) != (
        cut_point.epoch,
        cut_point.rules_version,
        cut_point.shards,
    ):
        return None
    erased = max((each.arrival for each in store.erasures(newest.gateway)), default=0)
    return newest if newest.arrival > erased else None


@lake_errors
def _table_frames(
    spark: SparkSession,
    table: str,
    snapshot: int,
    target: _Target,
    before: CheckpointTable | None,
    names: LakeNames,
) -> CheckpointTable:
    """Tag a table's snapshot and write its frames, and return the table's part of the checkpoint.

    Args:
        spark: an open Spark session.
        table: the table's name.
        snapshot: id of the table's snapshot.
        target: the checkpoint.
        before: the table in the checkpoint before, whose frames are linked if the snapshot is the same.
        names: catalogue and namespaces of the lake's tables.
    """
    name, gateway, arrival = names.state(table), target.gateway, target.arrival
    spark.sql(
        f"ALTER TABLE {name} CREATE OR REPLACE TAG `{CHECKPOINT_TAG}{gateway}-{arrival}` AS OF VERSION {snapshot} "
        f"RETAIN {target.retention_clause}"
    )
    crash_point("checkpoint.tagged")
    if before is not None and before.snapshot_id == snapshot:
        linked = link_frames(before.frames, f"{target.directory}/{table}")
        if linked is not None:
            return msgspec.structs.replace(before, frames=linked)
    written = _write_frames(spark, table, snapshot, target, names)
    files = sorted(written.to_pylist(), key=lambda file: str(file["uri"]))
    highest = max((file["highest_arrival"] for file in files), default=0)
    if highest > arrival:  # a checkpoint must be the state at exactly its arrival
        raise IntegrityError(
            f"{name} has deltas of {gateway} up to arrival {highest}, later than the checkpoint's {arrival}; make the "
            f"checkpoint at {highest} or later"
        )
    with_rows = [file for file in files if file["rows"]]
    return CheckpointTable(
        table,
        snapshot,
        sum(file["rows"] for file in with_rows),
        tuple(file["uri"] for file in with_rows),
        sum(file["bytes"] for file in with_rows),
    )


def _write_frames(spark: SparkSession, table: str, snapshot: int, target: _Target, names: LakeNames) -> pa.Table:
    """Write the frames of the gateway's rows in a table's snapshot, in Spark tasks; return what each task wrote."""
    with open_table(spark, names.state(table)) as opened:
        planned = planned_files(opened, snapshot, condition("_gateway", "=", target.gateway))
        files = [DataFile.of(scan_task) for scan_task in planned]
    count, write_part = frame_parts(files, target.gateway, f"{target.directory}/{table}", table, target.arrival)
    return in_tasks(spark, count, write_part, WRITTEN).toArrow()
