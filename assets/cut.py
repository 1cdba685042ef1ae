"""The assets `cut` and `checkpoint`: one arrival a gateway that all tables are merged to, published for first syncs."""

from collections.abc import Iterator

import dagster as dg

from assets.labels import CHECKPOINT, CUT, DELTAS, OWNERS, moment, state_key
from assets.outcome import outcome
from lakesync.staging.records import Cut
from resources.lake import flushed_arrivals, make_cut
from resources.pipeline import Pipeline
from resources.snapshot import SchemaSnapshot, registered, schemas_of


def cut_and_checkpoint(snapshot: SchemaSnapshot) -> dg.AssetsDefinition:
    """Both assets as one step, as a checkpoint is of exactly one cut.

    The tables are those registered now: one that came after the location was loaded is merged here.
    """

    @dg.multi_asset(
        name="cut",
        specs=[
            dg.AssetSpec(
                CUT,
                deps=[DELTAS, *(state_key(schema.table) for schema in snapshot.tables)],
                description="For each gateway the newest arrival to which all of its tables are merged, as snapshots.",
                group_name="cut",
                kinds={"spark", "iceberg"},
                owners=OWNERS,
            ),
            dg.AssetSpec(
                CHECKPOINT,
                deps=[CUT],
                description="All rows of a gateway at its newest cut, as frames that a new client reads first.",
                group_name="checkpoint",
                kinds={"spark", "protobuf"},
                owners=OWNERS,
            ),
        ],
        pool="lakesync_cut",
    )
    def cut(
        context: dg.AssetExecutionContext, pipeline: dg.ResourceParam[Pipeline]
    ) -> Iterator[dg.MaterializeResult[None]]:
        with outcome(context, pipeline):
            now = registered(pipeline.store)
            cuts = [
                make_cut(
                    pipeline.spark,
                    pipeline.store,
                    gateway,
                    arrival,
                    schemas_of(now, pipeline.store.gateway_config(gateway).schemas),
                    directory_uri=pipeline.checkpoints_uri,
                    names=pipeline.names,
                )
                for gateway, arrival in sorted(flushed_arrivals(pipeline.spark, pipeline.names).items())
            ]
        yield dg.MaterializeResult(asset_key=CUT, metadata=_cuts_told(cuts))
        yield dg.MaterializeResult(asset_key=CHECKPOINT, metadata=_frames_told(cuts, pipeline.checkpoints_uri))

    return cut


def _cuts_told(cuts: list[Cut]) -> dict[str, dg.MetadataValue | str | int | float]:
    told: dict[str, dg.MetadataValue | str | int | float] = {
        "gateways": ", ".join(cut.gateway for cut in cuts),
        "snapshot_ids": dg.MetadataValue.json(
            {cut.gateway: {table.table: str(table.snapshot_id) for table in cut.tables} for cut in cuts}
        ),
    }
    if cuts:
        told["valid_through"] = moment(min(cut.arrival for cut in cuts))
    return told


def _frames_told(cuts: list[Cut], uri: str) -> dict[str, dg.MetadataValue | str | int | float]:
    tables = [table for cut in cuts for table in cut.tables]
    return {
        "dagster/row_count": sum(table.rows for table in tables),
        "bytes": sum(table.bytes for table in tables),
        "frames": sum(len(table.frames) for table in tables),
        "rules_versions": dg.MetadataValue.json({cut.gateway: cut.rules_version for cut in cuts}),
        "dagster/uri": uri,
    }
