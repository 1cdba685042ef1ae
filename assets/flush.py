"""Creates the asset `deltas`, the history of the lake. Its step flushes staging's log into it.

The log has the deltas that gateways have acknowledged and the lake lacks. A run's cut point of a gateway is an arrival,
the gateway's timestamp of receipt: all pushes so far are at or before it, so a checkpoint can be made there. Staging's
ledger counts the acknowledged deltas of each day. `lakehouse.history.flush` does the work. The code location
(`lakesync_dagster.definitions`) calls this module.
"""

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

import dagster as dg

from assets.asset_metadata import (
    DELTAS,
    FLUSH_SENSOR,
    LOG,
    OWNERS,
    Metadata,
    arrivals_of,
    days_of,
    delta_columns,
    freshness_metadata,
    history_lineage,
    is_requested_by,
    nearest_key,
    previous_data_version,
    size_metadata,
)
from assets.failure_policy import failure_policy, set_aside
from lakehouse.run_state import RunState
from lakesync.config import Config
from lakesync.model.errors import LakeSyncError, TransientError
from lakesync.staging.ledger import day_of
from lakesync.staging.store.pipeline import FlushStore
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource, table_uri

if TYPE_CHECKING:
    from lakehouse.history.flush import FlushReport


def history(days: dg.PartitionsDefinition, config: Config) -> dg.AssetsDefinition:
    """Create the asset `deltas`, partitioned by day of arrival.

    A run that the flush sensor requests flushes all unflushed deltas. Any other run flushes the unflushed deltas of its
    days, and compares these days between staging's ledger and the lake.

    Args:
        days: partitions by UTC day of arrival.
        config: the project's configuration, with the lake and the size of a batch.
    """

    @dg.asset(
        key=DELTAS,
        deps=[LOG],
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool="lakesync_deltas",
        description="Every acknowledged delta exactly once, in order of arrival, from which all tables are merged.",
        group_name="flush",
        kinds={"spark", "iceberg"},
        owners=OWNERS,
        metadata={
            "dagster/column_schema": delta_columns(),
            "dagster/uri": table_uri(config.lake.warehouse, config.lake.system_namespace, "deltas"),
            "lineage": history_lineage(),
        },
    )
    def deltas(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.history.flush import MAX_DELTAS, flush_due, require_flushed

        days = None if is_requested_by(FLUSH_SENSOR, context) else days_of(context)
        with failure_policy(context, pyspark):
            if days is None:
                run_state.read_cut_points()
            reports: list[FlushReport] = []
            failed: dict[str, LakeSyncError] = {}
            flush_due(
                pyspark.spark_session,
                staging.store,
                max_deltas=config.flush.batch_deltas or MAX_DELTAS,
                names=lake.names,
                cut_points=run_state.cut_points() if days is None else None,
                within=arrivals_of(days) if days is not None else None,
                on_flushed=reports.append,
                on_failed=failed.setdefault,
            )
            # After a transient error the whole step is retried once. Then the gateways that fail are set aside.
            is_retried = context.op_execution_context.retry_number == 0 and any(
                isinstance(error, TransientError) for error in failed.values()
            )
            all_failed = failed.keys() >= set(staging.store.gateways())
            if is_retried or (failed and (days is not None or all_failed)):
                raise ExceptionGroup("gateways could not be flushed", list(failed.values()))
            for gateway, error in failed.items():
                set_aside(context, run_state, error, f"gateway {gateway} was not flushed", gateway)
                run_state.drop_cut_point(gateway)
            run_state.flushed(reread=True)
            _report_by_day(context, reports)
            if days is not None:
                _report_comparison(context, days, pyspark, lake, staging.store)
                require_flushed(staging.store, days)
            metadata = {
                **_flushed(reports),
                "snapshot_ids": dg.MetadataValue.json([str(report.snapshot_id) for report in reports]),
                "seconds": round(sum(report.seconds for report in reports), 2),
                **size_metadata(pyspark.spark_session, lake.names.deltas),
                **freshness_metadata(run_state.valid_through_ms(), staging.now_ms()),
                "dagster/uri": lake.uri(lake.system_namespace, "deltas"),
            }
        unchanged = None if reports else previous_data_version(context, DELTAS)
        version = unchanged or dg.DataVersion(str(reports[-1].snapshot_id) if reports else "empty")
        return dg.MaterializeResult(metadata=metadata, data_version=version)

    return deltas


def _report_by_day(context: dg.AssetExecutionContext, reports: "Sequence[FlushReport]") -> None:
    """Add to each partition what was flushed of its day. A batch counts for the day of its first arrival."""
    keys = context.partition_keys
    by_day: dict[str, list[FlushReport]] = {key: [] for key in keys}
    for report in reports:
        by_day[nearest_key(day_of(report.arrival_low), keys)].append(report)
    for key, mine in by_day.items():
        context.add_asset_metadata(_flushed(mine), DELTAS, key)


def _report_comparison(
    context: dg.AssetExecutionContext,
    days: Sequence[date],
    pyspark: SparkConnectResource,
    lake: LakeResource,
    store: FlushStore,
) -> None:
    """Add to each partition how many of its day's deltas staging's ledger and the lake have."""
    from lakehouse.checks import days_against_lake

    for day in days_against_lake(pyspark.spark_session, store, days, lake.names):
        compared: Metadata = {
            "acknowledged": day.acknowledged,
            "unflushed": day.unflushed,
            "dagster/partition_row_count": day.in_lake,
            "ledger_equals_lake": not day.differing,
        }
        if day.differing:
            compared["gateways_that_differ"] = ", ".join(day.differing)
        context.add_asset_metadata(compared, DELTAS, day.day)


def _flushed(reports: "Sequence[FlushReport]") -> Metadata:
    """Return the metadata of flushed batches, of a run or of one partition."""
    return {
        "deltas_in": sum(report.deltas for report in reports if not report.already_there),
        "duplicates": sum(report.deltas for report in reports if report.already_there),
        "batches": dg.MetadataValue.md(
            "\n".join(f"- `{report.batch_id}`: {report.deltas:,} deltas" for report in reports)
        ),
        "gateways": ", ".join(sorted({report.gateway for report in reports})),
    }
