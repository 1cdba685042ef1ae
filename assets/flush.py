"""The asset `deltas`: acknowledged deltas on their way from the gateway's log into the lake."""

from typing import TYPE_CHECKING

import dagster as dg

from assets.labels import DELTAS, LOG, OWNERS, moment
from assets.outcome import outcome
from resources.pipeline import Pipeline

if TYPE_CHECKING:
    from resources.lake.deltas import FlushReport


def history(days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
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
    )
    def deltas(context: dg.AssetExecutionContext, pipeline: dg.ResourceParam[Pipeline]) -> dg.MaterializeResult[None]:
        from resources.lake.deltas import flush_due

        with outcome(context, pipeline):
            pipeline.hold()
            reports: list[FlushReport] = []
            flush_due(
                pipeline.spark,
                pipeline.store,
                max_deltas=pipeline.config.flush.batch_deltas,
                names=pipeline.names,
                on_flushed=reports.append,
            )
            pipeline.flushed(anew=True)
            return dg.MaterializeResult(metadata=_told(reports, pipeline.uri(pipeline.names.system, "deltas")))

    return deltas


def _told(reports: list["FlushReport"], uri: str) -> dict[str, dg.MetadataValue | str | int | float]:
    told: dict[str, dg.MetadataValue | str | int | float] = {
        "deltas_in": sum(report.deltas for report in reports if not report.already_there),
        "duplicates": sum(report.deltas for report in reports if report.already_there),
        "batches": dg.MetadataValue.md(
            "\n".join(f"- `{report.batch_id}`: {report.deltas:,} deltas" for report in reports)
        ),
        "gateways": ", ".join(sorted({report.gateway for report in reports})),
        "snapshot_ids": dg.MetadataValue.json([report.snapshot_id for report in reports]),
        "seconds": round(sum(report.seconds for report in reports), 2),
        "dagster/uri": uri,
    }
    if reports:
        told["valid_through"] = moment(max(report.arrival_high for report in reports))
    return told
