"""The lake's upkeep: each table's files in order, staging's log trimmed, Dagster's own old runs deleted."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from assets.labels import CUT, DELTAS, LOG, OWNERS, state_key, table_pool
from assets.old_runs import delete_old_runs
from assets.outcome import outcome
from lakesync.config_sections import MaintenanceSection
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.snapshot import SchemaSnapshot
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakehouse.maintenance import Tidied, Upkeep

GROUP = "maintenance"


def maintenance(snapshot: SchemaSnapshot, section: MaintenanceSection) -> list[dg.AssetsDefinition]:
    """The upkeep of the history, of each state table, of staging and of Dagster's records."""
    return [
        upkeep(section, DELTAS, None, "lakesync_deltas"),
        *(
            upkeep(section, state_key(schema.table, where), schema.table, table_pool(schema.table, where), where)
            for schema, where in snapshot.states
        ),
        trimmed_log(),
        recent_runs(section),
    ]


def upkeep(
    section: MaintenanceSection, kept: dg.AssetKey, table: str | None, pool: str, namespace: str = ""
) -> dg.AssetsDefinition:
    """Tidies one table of a namespace, in the pool of its writer; None is the history."""

    @dg.asset(
        key=dg.AssetKey([GROUP, *kept.path]),
        deps=[kept],
        pool=pool,
        description=f"The files of `{table or 'deltas'}`, joined, without expired snapshots and files that none names.",
        group_name=GROUP,
        kinds={"spark", "iceberg"},
        owners=OWNERS,
    )
    def tidied(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.checkpoints.tags import cuts_kept, hold_newest
        from lakehouse.maintenance import tidy

        with outcome(context, pyspark):
            spark, store, names = pyspark.spark_session, staging.store, lake.names_in(namespace)
            backlog = store.backlog() if table is None else ()
            if table is not None:
                newest = (store.newest_cut(gateway) for gateway in run_state.gateways_in(namespace))
                cuts = [cut for cut in newest if cut is not None]
                hold_newest(spark, names, table, cuts, cuts_kept(section))
            done = tidy(spark, names, table, limits_of(section), backlog)
        return dg.MaterializeResult(metadata=_told(done))

    return tidied


def trimmed_log() -> dg.AssetsDefinition:
    """Trims what a flush that died had left."""

    @dg.asset(
        key=dg.AssetKey([GROUP, "staging"]),
        deps=[LOG, CUT],
        pool="lakesync_deltas",
        description="The gateway's log without the bodies of deltas that the lake was read to hold.",
        group_name=GROUP,
        kinds={"lakesync", "log"},
        owners=OWNERS,
    )
    def trimmed(context: dg.AssetExecutionContext, staging: StagingResource) -> dg.MaterializeResult[None]:
        with outcome(context):
            store = staging.store
            freed = sum(store.trim(waiting.gateway, waiting.shard) for waiting in store.backlog())
            left = store.backlog()
        waiting_bytes = sum(each.bytes for each in left)
        deltas = sum(each.deltas for each in left)
        return dg.MaterializeResult(
            metadata={"bytes_freed": freed, "bytes_waiting": waiting_bytes, "deltas_waiting": deltas}
        )

    return trimmed


def recent_runs(section: MaintenanceSection) -> dg.AssetsDefinition:
    """Deletes Dagster's records of old runs."""

    @dg.asset(
        key=dg.AssetKey([GROUP, "runs"]),
        description="Dagster's runs without those that are old and that no partition's newest state came from.",
        group_name=GROUP,
        kinds={"dagster"},
        owners=OWNERS,
    )
    def runs(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        before = datetime.now(UTC) - timedelta(days=section.run_days)
        done = delete_old_runs(context.instance, before)
        return dg.MaterializeResult(metadata={"deleted": done.deleted, "kept": done.kept})

    return runs


def limits_of(section: MaintenanceSection) -> "Upkeep":
    """The settings as the lake's upkeep takes them."""
    from lakehouse.maintenance import Upkeep

    return Upkeep(
        min_files=section.min_files,
        file_bytes=section.file_bytes,
        delete_ratio=section.delete_ratio,
        max_manifests=section.max_manifests,
        snapshot_hours=section.snapshot_hours,
        orphan_hours=section.orphan_hours,
    )


def _told(done: "Tidied") -> dict[str, dg.MetadataValue | int]:
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
