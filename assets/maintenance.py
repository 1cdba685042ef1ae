"""Creates the asset `maintenance`: it compacts the lake's tables, trims staging's log and deletes old Dagster runs.

Staging's log has the changes that gateways (streams of changes, one for each app) accepted; those that are in the lake
can be deleted there (trimmed). The asset has a partition for each table of the lake, one for the log and one for the
runs. `lakehouse.maintenance` does most of the work. The code location (`lakesync_dagster.definitions`) calls
`maintenance`; its jobs request the runs.

The *history*, the table `deltas`, has all changes, from which the state tables (current rows) are merged. A checkpoint
is a copy of a gateway's rows for new clients, made from snapshots of state tables.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg
import msgspec

from assets.asset_metadata import Metadata
from assets.failure_policy import failure_policy
from assets.names import DELTAS_POOL, state_key
from lakehouse.marks import maintenance_mark
from lakehouse.run_state import RunState
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Visit, flushed_state
from lakesync.config.pipeline_sections import MaintenanceSection
from lakesync.staging.store.pipeline import PipelineStore
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehouse.maintenance import MaintenanceReport

MAINTENANCE = dg.AssetKey("maintenance")
"""Key of the asset; its job has the same name."""
HISTORY, LOG, RUNS = "deltas", "staging", "runs"
"""Partitions that every project has: the Iceberg table of all changes, staging's log, and Dagster's runs. Each state
table, with the current rows of a synced table, has one more."""
RUNS_AT_ONCE = 500
"""Number of records that are read from Dagster's storage at once."""
ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
"""Statuses of runs that have ended."""


class LakePart(NamedTuple):
    """A table of the lake that has a partition of `maintenance`."""

    table: str
    is_state: bool
    """Whether it is a state table; otherwise a table in the system namespace, such as `deltas`."""
    namespace: str = ""
    """Namespace of a state table; empty for the one that gateways share."""


def lake_parts(snapshot: SchemaSnapshot) -> dict[str, LakePart]:
    """Return partition of `maintenance` → table, for the partitions that are tables of the lake.

    `landing` and `known` have the rows that were polled from external systems.
    """
    system_tables = [HISTORY, *(["landing", "known"] if snapshot.connectors else [])]
    parts = {table: LakePart(table, is_state=False) for table in system_tables}
    for schema, namespace in snapshot.states:
        parts[state_key(schema.table, namespace).to_user_string()] = LakePart(
            schema.table, is_state=True, namespace=namespace
        )
    return parts


def maintenance(snapshot: SchemaSnapshot, section: MaintenanceSection) -> dg.AssetsDefinition:
    """Create the asset `maintenance`.

    A run occupies the pool of the steps that write the history, and Dagster runs one step of a pool at a time. So no
    flush and no erasure runs meanwhile. A merge of a backfill may run: Iceberg then rejects one of the two commits,
    which is repeated.

    Args:
        snapshot: names the state tables and connectors.
        section: the thresholds, the section `maintenance` of the configuration.
    """
    tables = lake_parts(snapshot)

    @dg.multi_asset(
        name="tidy",  # the step's name, which must differ from that of the job, `maintenance`
        specs=[
            dg.AssetSpec(
                MAINTENANCE,
                description="The compacted files of a table, without expired snapshots and orphan files; the log "
                "without flushed deltas; Dagster's records without old runs.",
                group_name=MAINTENANCE.path[0],
                kinds={"spark", "iceberg"},
            )
        ],
        partitions_def=dg.StaticPartitionsDefinition([*tables, LOG, RUNS]),
        pool=DELTAS_POOL,
    )
    def maintained(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.maintenance import trim_log

        part = context.partition_key
        with failure_policy(context, pyspark):
            store = staging.store
            metadata: Metadata
            if part == RUNS:
                deleted, kept = delete_old_runs(
                    context.instance, datetime.now(UTC) - timedelta(days=section.run_retention_days)
                )
                metadata, state = {"deleted": deleted, "kept": kept}, ""
            elif part == LOG:
                backlog = store.backlog()
                metadata, state = msgspec.structs.asdict(trim_log(store, backlog)), flushed_state(backlog)
            else:
                report = _maintain_table(pyspark.spark_session, tables[part], lake, store, run_state, section)
                metadata, state = _metadata(report), str(report.snapshot_id)
            # the schedule requests the next run when this state has changed, or after a day
            visit = Visit(state, staging.now_ms())
            store.put_mark(maintenance_mark(part), msgspec.json.encode(visit).decode())
        return dg.MaterializeResult(metadata=metadata)

    return maintained


def delete_old_runs(instance: dg.DagsterInstance, before: datetime) -> tuple[int, int]:
    """Delete the ended runs that were created before some time, with their events.

    Runs with the newest materialisation of a partition are kept, because without their events Dagster would show the
    partition as missing.

    Args:
        instance: Dagster's instance.
        before: runs created before this time are old.

    Returns:
        The number of deleted runs, and of old runs that stay.
    """
    kept = _runs_to_keep(instance)
    deleted = [run_id for run_id in _old_runs(instance, before) if run_id not in kept]
    for run_id in deleted:
        instance.delete_run(run_id)
    return len(deleted), sum(1 for _ in _old_runs(instance, before))


def _maintain_table(
    spark: "SparkSession",
    part: LakePart,
    lake: LakeResource,
    store: PipelineStore,
    run_state: RunState,
    section: MaintenanceSection,
) -> "MaintenanceReport":
    """Compact a table of the lake and expire its Iceberg snapshots, except those of the newest checkpoints.

    Raises:
        LakeUnavailableError: Spark cannot be reached.
        CommitConflictError: another run wrote the table meanwhile, so that the commit was rejected.
    """
    from lakehouse.checkpoints.checkpoint import tag_newest
    from lakehouse.maintenance import maintain

    names = lake.names_in(part.namespace)
    if part.is_state:
        newest = (store.newest_checkpoint(gateway) for gateway in run_state.gateways_in(part.namespace))
        checkpoints = [checkpoint for checkpoint in newest if checkpoint is not None]
        tag_newest(spark, names, part.table, checkpoints, section)
        return maintain(spark, names, names.state(part.table), section)
    if part.table == HISTORY:
        return maintain(spark, names, names.deltas, section, store.backlog())
    return maintain(spark, names, {"landing": names.landing, "known": names.known}[part.table], section)


def _metadata(report: "MaintenanceReport") -> Metadata:
    """Return the metadata of a table's maintenance, with its files before and after."""
    before, after = report.before, report.after
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
        "joined_files": report.compacted,
        "rewritten_manifests": report.manifests,
        "expired_files": report.expired,
        "orphans_removed": report.orphans,
        "figures": dg.MetadataValue.md("\n".join(["| | before | after |", "|---|---:|---:|", *rows])),
    }


def _old_runs(instance: dg.DagsterInstance, before: datetime) -> Iterator[str]:
    """Yield the ids of the ended runs that were created before some time."""
    wanted = dg.RunsFilter(statuses=list(ENDED), created_before=before)
    cursor: str | None = None
    while records := instance.get_run_records(wanted, limit=RUNS_AT_ONCE, cursor=cursor):
        for record in records:
            yield record.dagster_run.run_id
        cursor = records[-1].dagster_run.run_id


def _runs_to_keep(instance: dg.DagsterInstance) -> set[str]:
    """Return the ids of the runs with the newest materialisation of an asset or partition."""
    kept: set[str] = set()
    storage = instance.event_log_storage
    for key in instance.get_asset_keys():
        newest = instance.get_latest_materialization_event(key)
        if newest is not None:
            kept.add(newest.run_id)
        by_partition = storage.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION)
        ids = sorted(by_partition.values())
        for start in range(0, len(ids), RUNS_AT_ONCE):
            wanted = dg.EventRecordsFilter(
                dg.DagsterEventType.ASSET_MATERIALIZATION, asset_key=key, storage_ids=ids[start : start + RUNS_AT_ONCE]
            )
            kept |= {record.event_log_entry.run_id for record in storage.get_event_records(wanted)}
    return kept
