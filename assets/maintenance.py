"""The lake's upkeep: each table's files in order, staging's log trimmed, Dagster's own old runs deleted."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg
import msgspec

from assets.asset_metadata import OWNERS, state_key, upkeep_mark
from assets.failure_policy import failure_policy
from assets.old_runs import delete_old_runs
from assets.run_metrics import Metadata
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Visit, flushed_state
from lakesync.config.sections import MaintenanceSection
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.maintenance import MaintenanceReport, Upkeep

MAINTENANCE = dg.AssetKey("maintenance")
HISTORY, LOG, RUNS = "deltas", "staging", "runs"
"""Parts that every pipeline has, beside its state tables."""


class LakePart(NamedTuple):
    """A table of the lake that is tidied by itself."""

    table: str
    namespace: str | None
    """Of a state table; `""` is the shared one. None: the lake's own."""


def lake_parts(snapshot: SchemaSnapshot) -> dict[str, LakePart]:
    """Return the parts that are tables of the lake, by the name of their partition."""
    own = [HISTORY, *(["landing", "known"] if snapshot.connectors else [])]
    found = {table: LakePart(table, None) for table in own}
    for schema, where in snapshot.states:
        found[state_key(schema.table, where).to_user_string()] = LakePart(schema.table, where)
    return found


def maintenance(snapshot: SchemaSnapshot, section: MaintenanceSection) -> dg.AssetsDefinition:
    """Create the asset: one partition for each table, one for staging's log and one for Dagster's runs.

    A run holds the pool of the history, so no flush and no erasure runs meanwhile. A merge of a backfill may: its
    commit or the upkeep's is refused then, and made again.

    Args:
        snapshot: names the tables.
        section: the thresholds.
    """
    tables = lake_parts(snapshot)

    @dg.multi_asset(
        name="tidy",  # the job has the asset's name
        specs=[
            dg.AssetSpec(
                MAINTENANCE,
                description="The files of a table, joined, without expired snapshots and files that none names; the "
                "log without what the lake has; and Dagster's runs without old ones.",
                group_name=MAINTENANCE.path[0],
                kinds={"spark", "iceberg"},
                owners=OWNERS,
            )
        ],
        partitions_def=dg.StaticPartitionsDefinition([*tables, LOG, RUNS]),
        pool="lakesync_deltas",
    )
    def tidied(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        part = context.partition_key
        with failure_policy(context, pyspark):
            store = staging.store
            metadata: Metadata
            if part == RUNS:
                done = delete_old_runs(context.instance, datetime.now(UTC) - timedelta(days=section.run_retention_days))
                metadata, state = {"deleted": done.deleted, "kept": done.kept}, ""
            elif part == LOG:
                metadata, state = trim(store)
            else:
                metadata, state = tidy_table(pyspark.spark_session, tables[part], lake, store, run_state, section)
            visit = Visit(state, staging.now_ms())
            store.put_mark(upkeep_mark(part), msgspec.json.encode(visit).decode())
        return dg.MaterializeResult(metadata=metadata)

    return tidied


def tidy_table(
    spark: "SparkSession",
    part: LakePart,
    lake: LakeResource,
    store: PipelineStore,
    run_state: RunState,
    section: MaintenanceSection,
) -> tuple[Metadata, str]:
    """Tidy a table of the lake.

    Args:
        spark: the run's session.
        part: the table.
        lake: its names.
        store: the staging store, which says what the lake has and which cuts are kept.
        run_state: names the gateways of a namespace.
        section: the thresholds.

    Returns:
        What is reported, and the table's state.
    """
    from lakehouse.checkpoints.tags import cuts_kept, hold_newest
    from lakehouse.maintenance import tidy
    from lakehouse.table_definitions import LakeNames

    names, table = lake.names, None if part.table == HISTORY else part.table
    if part.namespace is not None:
        names = lake.names_in(part.namespace)
        newest = (store.newest_cut(gateway) for gateway in run_state.gateways_in(part.namespace))
        cuts = [cut for cut in newest if cut is not None]
        hold_newest(spark, names, part.table, cuts, cuts_kept(section))
    elif table is not None:
        names = LakeNames(names.catalogue, names.system, names.system)
    done = tidy(spark, names, table, limits_of(section), store.backlog() if table is None else ())
    return _metadata(done), str(done.snapshot_id)


def trim(store: PipelineStore) -> tuple[Metadata, str]:
    """Trim what a flush that died had left in the log; return what is reported, and the log's state."""
    backlog = store.backlog()
    freed = sum(store.trim(waiting.gateway, waiting.shard) for waiting in backlog)
    left = store.backlog()
    metadata: Metadata = {
        "bytes_freed": freed,
        "bytes_waiting": sum(each.bytes for each in left),
        "deltas_waiting": sum(each.deltas for each in left),
    }
    return metadata, flushed_state(backlog)


def limits_of(section: MaintenanceSection) -> "Upkeep":
    """The settings as the lake's upkeep takes them."""
    from lakehouse.maintenance import Upkeep

    return Upkeep(
        min_files=section.min_input_files,
        file_bytes=section.target_file_bytes,
        delete_ratio=section.delete_ratio_threshold,
        max_manifests=section.max_manifests,
        snapshot_hours=section.snapshot_retention_hours,
        orphan_hours=section.orphan_retention_hours,
    )


def _metadata(done: "MaintenanceReport") -> Metadata:
    before, after = done.before, done.after
    rows = [
        f"| {name} | {getattr(before, field):,} | {getattr(after, field):,} |"
        for name, field in (
            ("data files", "data_files"),
            ("small files", "small_files"),
            ("delete files", "delete_files"),
            ("bytes", "bytes"),
            ("manifests", "manifests"),
            ("snapshots", "snapshots"),
        )
    ]
    return {
        "files": after.data_files + after.delete_files,
        "files_before": before.data_files + before.delete_files,
        "bytes": after.bytes,
        "bytes_before": before.bytes,
        "snapshots": after.snapshots,
        "snapshots_before": before.snapshots,
        "joined_files": done.joined,
        "rewritten_manifests": done.manifests,
        "expired_files": done.expired,
        "orphans_removed": done.orphans,
        "figures": dg.MetadataValue.md("\n".join(["| | before | after |", "|---|---:|---:|", *rows])),
    }
