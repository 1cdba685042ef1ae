"""The lake's upkeep: each table's files in order, staging's log trimmed, Dagster's own old runs deleted."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from assets.labels import CUT, DELTAS, LOG, OWNERS, state_key, table_pool
from assets.old_runs import delete_old_runs
from assets.outcome import outcome
from lakesync.config_sections import MaintenanceSection
from resources.pipeline import Pipeline
from resources.snapshot import SchemaSnapshot

if TYPE_CHECKING:
    from resources.lake.upkeep import Tidied, Upkeep

GROUP = "maintenance"


def maintenance(snapshot: SchemaSnapshot) -> list[dg.AssetsDefinition]:
    """The upkeep of the history, of each state table, of staging and of Dagster's records."""
    return [
        upkeep(DELTAS, None, "lakesync_deltas"),
        *(
            upkeep(state_key(schema.table, where), schema.table, table_pool(schema.table, where), where)
            for schema, where in snapshot.states
        ),
        trimmed_log(),
        recent_runs(),
    ]


def upkeep(kept: dg.AssetKey, table: str | None, pool: str, namespace: str = "") -> dg.AssetsDefinition:
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
    def tidied(context: dg.AssetExecutionContext, pipeline: dg.ResourceParam[Pipeline]) -> dg.MaterializeResult[None]:
        from resources.lake.cuts.tags import cuts_kept, hold_newest
        from resources.lake.upkeep import tidy

        with outcome(context, pipeline):
            store, names = pipeline.store, pipeline.names_in(namespace)
            backlog = store.backlog() if table is None else ()
            if table is not None:
                newest = (store.newest_cut(gateway) for gateway in pipeline.gateways_in(namespace))
                cuts = [cut for cut in newest if cut is not None]
                hold_newest(pipeline.spark, names, table, cuts, cuts_kept(pipeline.config.maintenance))
            done = tidy(pipeline.spark, names, table, limits_of(pipeline.config.maintenance), backlog)
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
    def trimmed(context: dg.AssetExecutionContext, pipeline: dg.ResourceParam[Pipeline]) -> dg.MaterializeResult[None]:
        with outcome(context, pipeline):
            store = pipeline.store
            freed = sum(store.trim(waiting.gateway, waiting.shard) for waiting in store.backlog())
            left = store.backlog()
        waiting_bytes = sum(each.bytes for each in left)
        deltas = sum(each.deltas for each in left)
        return dg.MaterializeResult(
            metadata={"bytes_freed": freed, "bytes_waiting": waiting_bytes, "deltas_waiting": deltas}
        )

    return trimmed


def recent_runs() -> dg.AssetsDefinition:
    """Deletes Dagster's records of old runs."""

    @dg.asset(
        key=dg.AssetKey([GROUP, "runs"]),
        description="Dagster's runs without those that are old and that no partition's newest state came from.",
        group_name=GROUP,
        kinds={"dagster"},
        owners=OWNERS,
    )
    def runs(context: dg.AssetExecutionContext, pipeline: dg.ResourceParam[Pipeline]) -> dg.MaterializeResult[None]:
        before = datetime.now(UTC) - timedelta(days=pipeline.config.maintenance.run_days)
        done = delete_old_runs(context.instance, before)
        return dg.MaterializeResult(metadata={"deleted": done.deleted, "kept": done.kept})

    return runs


def limits_of(section: MaintenanceSection) -> "Upkeep":
    """The settings as the lake's upkeep takes them."""
    from resources.lake.upkeep import Upkeep

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
