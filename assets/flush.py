"""The asset `deltas`: acknowledged deltas on their way from the gateway's log into the lake."""

from typing import TYPE_CHECKING

import dagster as dg

from assets.columns import delta_columns, history_lineage
from assets.labels import DELTAS, LOG, OWNERS
from assets.outcome import outcome, set_aside
from assets.series import Told, kept_version, sized, through
from lakesync.config import Config
from lakesync.exceptions import LakeSyncError, TransientError
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.spark import SparkConnectResource
from resources.uris import table_uri

if TYPE_CHECKING:
    from lakehouse.history.flush import FlushReport


def history(days: dg.PartitionsDefinition, config: Config) -> dg.AssetsDefinition:
    """The history table, partitioned by day of arrival."""

    @dg.asset(
        key=DELTAS,
        deps=[LOG],
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool="lakesync_deltas",
        description="Every acknowledged delta exactly once, in order of arrival: the record that all tables follow.",
        group_name="flush",
        kinds={"spark", "iceberg"},
        owners=OWNERS,
        metadata={
            "dagster/column_schema": delta_columns(),
            "dagster/uri": table_uri(config, config.lake.system_namespace, "deltas"),
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
        from lakehouse.history.flush import MAX_DELTAS, flush_due

        with outcome(context, pyspark):
            run_state.note_cut_points()
            reports: list[FlushReport] = []
            failed: dict[str, LakeSyncError] = {}
            flush_due(
                pyspark.spark_session,
                staging.store,
                max_deltas=config.flush.batch_deltas or MAX_DELTAS,
                names=lake.names,
                holds=run_state.cut_points(),
                on_flushed=reports.append,
                on_failed=failed.setdefault,
            )
            passing = context.op_execution_context.retry_number == 0 and any(
                isinstance(error, TransientError) for error in failed.values()
            )
            if passing or (failed and failed.keys() >= set(staging.store.gateways())):
                raise ExceptionGroup("gateways could not be flushed", list(failed.values()))
            for gateway, error in failed.items():
                set_aside(context, run_state, error, f"gateway {gateway} was not flushed", gateway)
                run_state.drop_cut_point(gateway)
            run_state.flushed(anew=True)
            told = {
                **_told(reports),
                **sized(pyspark.spark_session, lake.names.deltas),
                **through(run_state.settled_ms(), staging.now_ms()),
                "dagster/uri": lake.uri(lake.system_namespace, "deltas"),
            }
        unchanged = None if reports else kept_version(context, DELTAS)
        version = unchanged or dg.DataVersion(str(reports[-1].snapshot_id) if reports else "empty")
        return dg.MaterializeResult(metadata=told, data_version=version)

    return deltas


def _told(reports: list["FlushReport"]) -> Told:
    return {
        "deltas_in": sum(report.deltas for report in reports if not report.already_there),
        "duplicates": sum(report.deltas for report in reports if report.already_there),
        "batches": dg.MetadataValue.md(
            "\n".join(f"- `{report.batch_id}`: {report.deltas:,} deltas" for report in reports)
        ),
        "gateways": ", ".join(sorted({report.gateway for report in reports})),
        "snapshot_ids": dg.MetadataValue.json([str(report.snapshot_id) for report in reports]),
        "seconds": round(sum(report.seconds for report in reports), 2),
    }
