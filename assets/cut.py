"""The assets `cut` and `checkpoint`: one arrival a gateway that all tables are merged to, published for first syncs."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence

import dagster as dg
from pyspark.sql import SparkSession

from assets.asset_metadata import CHECKPOINT, CUT, DELTAS, OWNERS, state_key
from assets.failure_policy import brief, failure_policy, raise_set_aside, set_aside
from assets.run_metrics import Metadata, content_version, freshness_metadata, spark_metadata
from lakehouse.schema_snapshot import SchemaSnapshot, registered
from lakesync.config import Config
from lakesync.model.errors import IntegrityError, NotFoundError, TransientError
from lakesync.model.hlc import wall_of
from lakesync.model.schema import TableSchema
from lakesync.staging.records import Cut
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.spark import SparkConnectResource
from resources.uris import checkpoints_uri, staging_uri

_POOL = "lakesync_cut"
_CUT_LINEAGE = dg.MetadataValue.md(
    "One arrival W a gateway: every table merged with `deltas.arrival <= W`, its snapshot tagged `cut-GATEWAY-W` and "
    "so kept from expiry. Staging records W, the version of the sync rules, and each table's snapshot."
)
_CHECKPOINT_LINEAGE = dg.MetadataValue.md(
    "The visible rows of each table `VERSION AS OF` the cut's snapshot, as length-prefixed `SyncResponse` messages. "
    "`GET /sync/{gateway}/checkpoint` filters them by the caller's rules while it sends them."
)


GATEWAYS = dg.DynamicPartitionsDefinition(name="gateways")
"""The gateways that have a checkpoint."""


def cut_and_checkpoint(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetsDefinition]:
    """Create the cut of all gateways, which a flush makes, and the checkpoints, one partition a gateway.

    Args:
        snapshot: names the state tables.
        config: names the places of frames and staging.
    """
    return [cut_asset(snapshot, config), checkpoint_asset(config)]


def cut_asset(snapshot: SchemaSnapshot, config: Config) -> dg.AssetsDefinition:
    """Create the last step of a flush, which cuts every gateway and publishes the checkpoints, each a partition.

    The partitions of a run of a flush are days, so Dagster cannot run the checkpoints' partitions within it. The tables
    are those registered now: one that came after the location was loaded is merged here.

    Args:
        snapshot: names the state tables.
        config: the lake, and how long snapshots of cuts are kept.
    """

    @dg.asset(
        key=CUT,
        deps=[DELTAS, *(state_key(schema.table, where) for schema, where in snapshot.states)],
        pool=_POOL,
        description="For each gateway the newest arrival to which all of its tables are merged, as snapshots.",
        group_name="cut",
        kinds={"spark", "iceberg"},
        owners=OWNERS,
        metadata={"dagster/uri": staging_uri(config), "lineage": _CUT_LINEAGE},
    )
    def cut(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> Iterator[dg.MaterializeResult[None]]:
        with failure_policy(context, pyspark):
            failed: dict[str, Exception] = {}
            spark = pyspark.spark_session
            cuts = make_cuts(spark, lake, staging.store, run_state, config, failed.setdefault)
            if failed and (not cuts or any(isinstance(error, TransientError) for error in failed.values())):
                raise ExceptionGroup("cuts failed", list(failed.values()))
            for gateway, error in failed.items():
                set_aside(context, run_state, error, f"gateway {gateway} was not cut and keeps its checkpoint")
            now_ms = staging.now_ms()
        reasons = {gateway: brief(error) for gateway, error in failed.items()}
        left_out: Metadata = {"left_out": dg.MetadataValue.json(reasons)} if failed else {}
        _add_partitions(context.instance, [cut.gateway for cut in cuts])
        figures = spark_metadata(pyspark) if cuts else {}
        for one in cuts:
            context.log_event(
                dg.AssetMaterialization(
                    CHECKPOINT,
                    partition=one.gateway,
                    metadata={
                        **_frames_metadata([one], lake.checkpoints_uri),
                        **_valid([one], run_state, now_ms),
                        **figures,
                    },
                    tags={"dagster/data_version": _version([one]).value},
                )
            )
        yield dg.MaterializeResult(
            metadata={**_cuts_metadata(cuts), **_valid(cuts, run_state, now_ms), **left_out},
            data_version=_version(cuts),
        )
        raise_set_aside(context, run_state)

    return cut


def checkpoint_asset(config: Config) -> dg.AssetsDefinition:
    """Create the checkpoints, by gateway. A run cuts its gateways again, where everything they took is in the lake."""

    @dg.asset(
        key=CHECKPOINT,
        deps=[CUT],
        partitions_def=GATEWAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=_POOL,
        description="All rows of a gateway at its newest cut, as frames that a new client reads first.",
        group_name="checkpoint",
        kinds={"spark", "protobuf"},
        owners=OWNERS,
        metadata={"dagster/uri": checkpoints_uri(config), "lineage": _CHECKPOINT_LINEAGE},
    )
    def checkpoint(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        gateways, store = context.partition_keys, staging.store
        with failure_policy(context, pyspark):
            made = make_cuts(pyspark.spark_session, lake, store, run_state, config, gateways=gateways)
            newest = {cut.gateway: cut for cut in made}
            for gateway in gateways:
                cut = newest.get(gateway) or store.newest_cut(gateway)
                if cut is None:
                    raise NotFoundError(
                        f"gateway {gateway!r} has no checkpoint: it has unflushed deltas, or none at all. Run "
                        "`lakesync flush`"
                    )
                newest[gateway] = cut
                metadata = {
                    **_frames_metadata([cut], lake.checkpoints_uri),
                    **_valid([cut], run_state, staging.now_ms()),
                }
                context.add_asset_metadata({**metadata, "was_cut": cut in made}, CHECKPOINT, gateway)
        return dg.MaterializeResult(data_version=_version(list(newest.values())))

    return checkpoint


def make_cuts(
    spark: SparkSession,
    lake: LakeResource,
    store: PipelineStore,
    run_state: RunState,
    config: Config,
    on_failed: Callable[[str, Exception], object] | None = None,
    gateways: Collection[str] | None = None,
) -> list[Cut]:
    """Cut each gateway that has anything in the lake, all of its shards at one arrival.

    A gateway with more deltas than this run flushed is not cut, nor one whose rows still follow a change of rules. A
    gateway that fails does not stop the others, and keeps the checkpoint that it has: one without some of its tables
    would hide their rows from new clients.

    Args:
        spark: the run's session.
        lake: the tables' names.
        store: the staging store, which records the cuts.
        run_state: where each gateway can be cut.
        config: how long the snapshots of cuts are kept, and the contracts of tables.
        on_failed: called with a gateway and its error. Without it all errors are raised at the end.
        gateways: the only ones that are cut; None: all.

    Returns:
        The cuts that were made, and those that were kept because nothing has changed.

    Raises:
        ExceptionGroup: the errors of the gateways that failed, without `on_failed`.
    """
    from lakehouse.checkpoints.cutting import make_cut
    from lakehouse.checkpoints.old_frames import drop_old_frames
    from lakehouse.checkpoints.tags import cuts_kept

    own = lake.gateway_namespaces
    registered_now = registered(store, own)
    cuts: list[Cut] = []
    errors: dict[str, Exception] = {}
    in_the_lake = run_state.flushed()
    for gateway, hold in sorted(run_state.cut_points().items()):
        if gateway not in in_the_lake or hold.rules_version is None:
            continue
        if gateways is not None and gateway not in gateways:
            continue
        try:
            names = run_state.names_of(gateway)
            tables = _tables(spark, lake, store, gateway, hold.arrival)
            if (reason := run_state.left_out(gateway, tables)) is not None:
                raise IntegrityError(reason)
            schemas = [_schema(registered_now, store, gateway, table, config) for table in sorted(tables)]
            cut = make_cut(
                spark,
                store,
                hold,
                schemas,
                directory_uri=lake.checkpoints_uri,
                names=names,
                kept=cuts_kept(config.maintenance),
                contracts=config.contracts,
            )
        except Exception as error:
            error.add_note(f"in the cut of gateway {gateway} at {hold.arrival}")
            errors[gateway] = error
        else:
            cuts.append(cut)
            drop_old_frames(lake.checkpoints_uri, cut, time.time_ns() // 1_000_000)
    if errors and on_failed is None:
        raise ExceptionGroup("cuts failed", list(errors.values()))
    if on_failed is not None:
        for gateway, failure in errors.items():
            on_failed(gateway, failure)
    return cuts


def _schema(
    registered_now: SchemaSnapshot, store: PipelineStore, gateway: str, table: str, config: Config
) -> TableSchema:
    """A table's schema for a gateway's cut: of a frozen table its own, so that no other gateway's holds it up."""
    if config.contracts.get(table) == "freeze":
        known = store.gateway_config(gateway).schemas.get(table)
        return known.schema if known is not None else TableSchema(table, columns=())
    return registered_now.state(table, config.namespaces.own.get(gateway, ""))


def _valid_ms(run_state: RunState, cut: Cut) -> int:
    """A cut that was kept because nothing has changed is as new as the run."""
    hold = run_state.cut_points().get(cut.gateway)
    return wall_of(max(cut.arrival, hold.arrival) if hold is not None else cut.arrival)


def _tables(spark: SparkSession, lake: LakeResource, store: PipelineStore, gateway: str, arrival: int) -> set[str]:
    """A gateway's tables: registered, in its last cut, or named by a delta since, as tables need no schema."""
    from lakehouse.active_tables import tables_named

    newest = store.newest_cut(gateway)
    cut = {table.table for table in newest.tables} if newest else set()
    since = newest.arrival if newest else 0
    named = tables_named(spark, gateway, since, arrival, lake.names) if since < arrival else set()
    return cut | named | store.gateway_config(gateway).schemas.keys()


def _valid(cuts: Sequence[Cut], run_state: RunState, now_ms: int) -> Metadata:
    return freshness_metadata(min((_valid_ms(run_state, cut) for cut in cuts), default=None), now_ms)


def _version(cuts: Sequence[Cut]) -> dg.DataVersion:
    return content_version([_snapshots(cuts), {cut.gateway: cut.rules_version for cut in cuts}])


def _snapshots(cuts: Sequence[Cut]) -> dict[str, dict[str, str]]:
    return {cut.gateway: {table.table: str(table.snapshot_id) for table in cut.tables} for cut in cuts}


def _add_partitions(instance: dg.DagsterInstance, gateways: Sequence[str]) -> None:
    """Make gateways partitions of the checkpoints."""
    known = set(instance.get_dynamic_partitions(GATEWAYS.name or ""))
    if new := [gateway for gateway in gateways if gateway not in known]:
        instance.add_dynamic_partitions(GATEWAYS.name or "", new)


def _cuts_metadata(cuts: Sequence[Cut]) -> Metadata:
    return {
        "gateways": ", ".join(cut.gateway for cut in cuts),
        "tables": sum(len(cut.tables) for cut in cuts),
        "arrivals": dg.MetadataValue.json({cut.gateway: str(cut.arrival) for cut in cuts}),
        "snapshot_ids": dg.MetadataValue.json(_snapshots(cuts)),
    }


def _frames_metadata(cuts: Sequence[Cut], uri: str) -> Metadata:
    tables = [table for cut in cuts for table in cut.tables]
    return {
        "dagster/row_count": sum(table.rows for table in tables),
        "bytes": sum(table.bytes for table in tables),
        "files": sum(len(table.frames) for table in tables),
        "rules_versions": dg.MetadataValue.json({cut.gateway: cut.rules_version for cut in cuts}),
        "dagster/uri": uri,
    }
