"""The assets `cut` and `checkpoint`: one arrival a gateway that all tables are merged to, published for first syncs."""

import time
from collections.abc import Callable, Iterator

import dagster as dg

from assets.labels import CHECKPOINT, CUT, DELTAS, OWNERS, state_key
from assets.outcome import outcome, raise_set_aside, set_aside
from assets.series import Told, content_version, through
from lakesync.config import Config
from lakesync.exceptions import LakeSyncError, TransientError
from lakesync.hlc import wall_of
from lakesync.staging.records import Cut
from resources.pipeline import Pipeline
from resources.snapshot import SchemaSnapshot, registered
from resources.uris import checkpoints_uri, staging_uri

_CUT_LINEAGE = dg.MetadataValue.md(
    "One arrival W a gateway: every table merged with `deltas.arrival <= W`, its snapshot tagged `cut-GATEWAY-W` and "
    "so kept from expiry. Staging records W, the version of the sync rules, and each table's snapshot."
)
_CHECKPOINT_LINEAGE = dg.MetadataValue.md(
    "The visible rows of each table `VERSION AS OF` the cut's snapshot, as length-prefixed `SyncResponse` messages. "
    "`GET /sync/{gateway}/checkpoint` filters them by the caller's rules while it sends them."
)


def cut_and_checkpoint(snapshot: SchemaSnapshot, config: Config) -> dg.AssetsDefinition:
    """Both assets as one step, as a checkpoint is of exactly one cut.

    The tables are those registered now: one that came after the location was loaded is merged here.
    """

    @dg.multi_asset(
        name="cut",
        specs=[
            dg.AssetSpec(
                CUT,
                deps=[DELTAS, *(state_key(schema.table, where) for schema, where in snapshot.states)],
                description="For each gateway the newest arrival to which all of its tables are merged, as snapshots.",
                group_name="cut",
                kinds={"spark", "iceberg"},
                owners=OWNERS,
                metadata={"dagster/uri": staging_uri(config), "lineage": _CUT_LINEAGE},
            ),
            dg.AssetSpec(
                CHECKPOINT,
                deps=[CUT],
                description="All rows of a gateway at its newest cut, as frames that a new client reads first.",
                group_name="checkpoint",
                kinds={"spark", "protobuf"},
                owners=OWNERS,
                metadata={"dagster/uri": checkpoints_uri(config), "lineage": _CHECKPOINT_LINEAGE},
            ),
        ],
        pool="lakesync_cut",
    )
    def cut(
        context: dg.AssetExecutionContext, pipeline: dg.ResourceParam[Pipeline]
    ) -> Iterator[dg.MaterializeResult[None]]:
        with outcome(context, pipeline):
            failed: dict[str, LakeSyncError] = {}
            cuts = make_cuts(pipeline, failed.setdefault)
            if failed and (not cuts or any(isinstance(error, TransientError) for error in failed.values())):
                raise ExceptionGroup("cuts failed", list(failed.values()))
            for gateway, error in failed.items():
                set_aside(context, pipeline, error, f"gateway {gateway} was not cut")
        snapshots = {cut.gateway: {table.table: str(table.snapshot_id) for table in cut.tables} for cut in cuts}
        version = content_version([snapshots, {cut.gateway: cut.rules_version for cut in cuts}])
        valid = through(pipeline, min((_valid_ms(pipeline, cut) for cut in cuts), default=None))
        frames = _frames_told(cuts, pipeline.checkpoints_uri)
        yield dg.MaterializeResult(
            asset_key=CUT, metadata={**_cuts_told(cuts, snapshots), **valid}, data_version=version
        )
        yield dg.MaterializeResult(asset_key=CHECKPOINT, metadata={**frames, **valid}, data_version=version)
        raise_set_aside(context, pipeline)

    return cut


def make_cuts(pipeline: Pipeline, on_failed: Callable[[str, LakeSyncError], object] | None = None) -> list[Cut]:
    """A cut of each gateway that has anything in the lake, of all of its shards at one arrival.

    There is none of a gateway of which more waits than this run flushed, nor while its rows are brought in line with
    rules that changed. A gateway that fails does not hold the others: theirs are published first. With `on_failed`,
    that is told of its error, which is not raised.

    Raises:
        ExceptionGroup: of what the gateways' cuts raised.
    """
    from resources.lake.cuts.cutting import make_cut
    from resources.lake.cuts.old_frames import drop_old_frames
    from resources.lake.cuts.tags import cuts_kept

    own = pipeline.config.namespaces.own
    registered_now = registered(pipeline.store, own)
    cuts: list[Cut] = []
    errors: dict[str, LakeSyncError] = {}
    in_the_lake = pipeline.flushed()
    for gateway, hold in sorted(pipeline.holds().items()):
        if gateway not in in_the_lake or hold.rules_version is None:
            continue
        try:
            names = pipeline.names_of(gateway)
            tables = _tables(pipeline, gateway, hold.arrival)
            schemas = [registered_now.state(table, own.get(gateway, "")) for table in sorted(tables)]
            cut = make_cut(
                pipeline.spark,
                pipeline.store,
                hold,
                schemas,
                directory_uri=pipeline.checkpoints_uri,
                names=names,
                kept=cuts_kept(pipeline.config.maintenance),
                contracts=pipeline.contracts(),
            )
        except LakeSyncError as error:
            error.add_note(f"in the cut of gateway {gateway} at {hold.arrival}")
            errors[gateway] = error
        else:
            cuts.append(cut)
            drop_old_frames(pipeline.checkpoints_uri, cut, time.time_ns() // 1_000_000)
    if errors and on_failed is None:
        raise ExceptionGroup("cuts failed", list(errors.values()))
    if on_failed is not None:
        for gateway, failure in errors.items():
            on_failed(gateway, failure)
    return cuts


def _valid_ms(pipeline: Pipeline, cut: Cut) -> int:
    """A cut that was kept, as nothing has changed since, is that of this run's moment too."""
    hold = pipeline.holds().get(cut.gateway)
    return wall_of(max(cut.arrival, hold.arrival) if hold is not None else cut.arrival)


def _tables(pipeline: Pipeline, gateway: str, arrival: int) -> set[str]:
    """A gateway's tables: registered, in its last cut, or named by a delta since, as tables need no schema."""
    from resources.lake.named import tables_named

    newest = pipeline.store.newest_cut(gateway)
    cut = {table.table for table in newest.tables} if newest else set()
    since = newest.arrival if newest else 0
    named = tables_named(pipeline.spark, gateway, since, arrival, pipeline.names) if since < arrival else set()
    return cut | named | pipeline.store.gateway_config(gateway).schemas.keys()


def _cuts_told(cuts: list[Cut], snapshots: dict[str, dict[str, str]]) -> Told:
    return {
        "gateways": ", ".join(cut.gateway for cut in cuts),
        "tables": sum(len(cut.tables) for cut in cuts),
        "arrivals": dg.MetadataValue.json({cut.gateway: str(cut.arrival) for cut in cuts}),
        "snapshot_ids": dg.MetadataValue.json(snapshots),
    }


def _frames_told(cuts: list[Cut], uri: str) -> Told:
    tables = [table for cut in cuts for table in cut.tables]
    return {
        "dagster/row_count": sum(table.rows for table in tables),
        "bytes": sum(table.bytes for table in tables),
        "files": sum(len(table.frames) for table in tables),
        "rules_versions": dg.MetadataValue.json({cut.gateway: cut.rules_version for cut in cuts}),
        "dagster/uri": uri,
    }
