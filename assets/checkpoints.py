"""Creates the assets `checkpoint_snapshots` and `checkpoint`, which make the checkpoints from which new clients start.

A gateway is one app's stream of changes. A checkpoint has all its rows at one arrival (the gateway's timestamp of a
push), in files of frames (protobuf messages). `checkpoint_snapshots` is the last step of a run that the flush sensor
requests: it makes the checkpoint of every gateway from Iceberg snapshots of the state tables (with current rows), and
tags these snapshots. `checkpoint` shows the checkpoints with a partition for each gateway. `lakehouse.checkpoints` does
the work. The code location (`lakesync_dagster.definitions`) calls `checkpoints`.

The run's state, `RunState`, has each gateway's *cut point* (the arrival up to which the run merges the tables) and the
*deferred* failures: the run continues without the gateway or table, and fails in its last step.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from assets.asset_metadata import Metadata, content_version, freshness_metadata, spark_metadata
from assets.failure_policy import brief, defer_failure, failure_policy, raise_deferred_failures
from assets.names import CHECKPOINT, CHECKPOINT_POOL, DELTAS, FLUSH_SENSOR, SNAPSHOTS, is_requested_by, state_key
from lakehouse.run_state import RunState
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config
from lakesync.model.errors import NotFoundError, TransientError
from lakesync.model.hlc import wall_of
from lakesync.staging.records import Checkpoint
from resources.spark import SparkConnectResource
from resources.stores import LakeResource, StagingResource, checkpoints_uri, staging_uri

_SNAPSHOTS_LINEAGE = dg.MetadataValue.md(
    "One arrival W for each gateway: every table is merged with `deltas.arrival <= W` and its snapshot is tagged "
    "`cut-GATEWAY-W`, which keeps it from expiry. Staging records W, the version of the sync rules, and each table's "
    "snapshot."
)
_CHECKPOINT_LINEAGE = dg.MetadataValue.md(
    "The visible rows of each table `VERSION AS OF` the tagged snapshot, as length-prefixed `SyncResponse` messages. "
    "`GET /sync/{gateway}/checkpoint` filters them by the caller's rules while it sends them."
)

GATEWAYS = dg.DynamicPartitionsDefinition(name="gateways")
"""Partitions of `checkpoint`: the gateways that have one."""


def checkpoints(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetsDefinition]:
    """Create the asset that a flush materialises, and `checkpoint`, which has a partition for each gateway.

    Args:
        snapshot: the registered tables and connectors.
        config: the project's configuration.
    """
    return [_snapshots_asset(snapshot, config), _checkpoint_asset(config)]


def _snapshots_asset(snapshot: SchemaSnapshot, config: Config) -> dg.AssetsDefinition:
    """Create the asset `checkpoint_snapshots`, whose step makes every gateway's checkpoint.

    It reports each checkpoint as a partition of `checkpoint`, because Dagster cannot run partitions by gateway in a run
    whose partitions are days. Tables that were registered after the code location was loaded have no asset yet, so this
    step also merges them.
    """
    sources = [DELTAS, *(state_key(schema.table, namespace) for schema, namespace in snapshot.states)]

    @dg.asset(
        key=SNAPSHOTS,
        deps=sources,
        pool=CHECKPOINT_POOL,
        description="For each gateway, the snapshots of all its tables at the newest arrival to which they are merged.",
        group_name="checkpoint_snapshots",
        kinds={"spark", "iceberg"},
        metadata={"dagster/uri": staging_uri(config), "lineage": _SNAPSHOTS_LINEAGE},
    )
    def snapshots(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> Iterator[dg.MaterializeResult[None]]:
        from lakehouse.checkpoints.publication import make_checkpoints

        unchecked = [key for key in sources if key.to_user_string() not in run_state.checked]
        if unchecked and is_requested_by(FLUSH_SENSOR, context.run):
            raise dg.Failure(
                "this run repeats a part of a flush without the checks of "
                f"{', '.join(key.to_user_string() for key in unchecked)}, so it makes no checkpoints: re-execute all "
                "steps, or wait for the next flush",
                allow_retries=False,
            )
        failed: dict[str, Exception] = {}
        with failure_policy(context, pyspark):
            made = make_checkpoints(
                pyspark.spark_session,
                staging.store,
                run_state,
                config,
                lake.checkpoints_uri,
                on_failed=failed.setdefault,
            )
            # a transient error fails the step, which Dagster then retries
            if failed and (not made or any(isinstance(error, TransientError) for error in failed.values())):
                raise ExceptionGroup("checkpoints failed", list(failed.values()))
            for gateway, error in failed.items():
                defer_failure(context, run_state, error, f"gateway {gateway} has no new checkpoint and keeps its last")
            now_ms = staging.now_ms()
        _report_partitions(context, made, spark_metadata(pyspark) if made else {}, lake, run_state, now_ms)
        reasons = {gateway: brief(error) for gateway, error in failed.items()}
        left_out: Metadata = {"left_out": dg.MetadataValue.json(reasons)} if failed else {}
        yield dg.MaterializeResult(
            metadata={**_snapshots_metadata(made), **_valid_metadata(made, run_state, now_ms), **left_out},
            data_version=_version(made),
        )
        raise_deferred_failures(run_state)  # this is the run's last step

    return snapshots


def _checkpoint_asset(config: Config) -> dg.AssetsDefinition:
    """Create the asset `checkpoint`, with a partition for each gateway.

    A run of its own makes new checkpoints for gateways whose changes are all in the lake. For the others it reports the
    newest existing one.
    """

    @dg.asset(
        key=CHECKPOINT,
        deps=[SNAPSHOTS],
        partitions_def=GATEWAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=CHECKPOINT_POOL,
        description="All rows of a gateway at one arrival, as frames for the first sync of a new client.",
        group_name="checkpoint",
        kinds={"spark", "protobuf"},
        metadata={"dagster/uri": checkpoints_uri(config), "lineage": _CHECKPOINT_LINEAGE},
    )
    def checkpoint(
        context: dg.AssetExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> dg.MaterializeResult[None]:
        from lakehouse.checkpoints.publication import make_checkpoints

        gateways, store = context.partition_keys, staging.store
        with failure_policy(context, pyspark):
            made = make_checkpoints(
                pyspark.spark_session, store, run_state, config, lake.checkpoints_uri, gateways=gateways
            )
            newest = {each.gateway: each for each in made}  # the loop adds those of gateways without a new checkpoint
            for gateway in gateways:
                newest_of_gateway = newest.get(gateway) or store.newest_checkpoint(gateway)
                if newest_of_gateway is None:
                    raise NotFoundError(
                        f"gateway {gateway!r} has no checkpoint: it has unflushed deltas, or none at all. Run "
                        "`lakesync flush`"
                    )
                newest[gateway] = newest_of_gateway
                metadata = _partition_metadata(newest_of_gateway, lake, run_state, staging.now_ms())
                context.add_asset_metadata({**metadata, "is_new": newest_of_gateway in made}, CHECKPOINT, gateway)
        return dg.MaterializeResult(data_version=_version(list(newest.values())))

    return checkpoint


def _report_partitions(
    context: dg.AssetExecutionContext,
    made: Sequence[Checkpoint],
    spark_figures: Metadata,
    lake: LakeResource,
    run_state: RunState,
    now_ms: int,
) -> None:
    """Report each checkpoint as a materialised partition of the asset `checkpoint`."""
    name = GATEWAYS.name or ""
    known = set(context.instance.get_dynamic_partitions(name))
    if new := [each.gateway for each in made if each.gateway not in known]:
        context.instance.add_dynamic_partitions(name, new)
    for each in made:
        context.log_event(
            dg.AssetMaterialization(
                CHECKPOINT,
                partition=each.gateway,
                metadata={**_partition_metadata(each, lake, run_state, now_ms), **spark_figures},
                tags={"dagster/data_version": _version([each]).value},
            )
        )


def _partition_metadata(made: Checkpoint, lake: LakeResource, run_state: RunState, now_ms: int) -> Metadata:
    """Return the metadata of one gateway's checkpoint."""
    return {
        "dagster/row_count": sum(table.rows for table in made.tables),
        "bytes": sum(table.bytes for table in made.tables),
        "files": sum(len(table.frames) for table in made.tables),
        "rules_versions": dg.MetadataValue.json({made.gateway: made.rules_version}),
        "dagster/uri": lake.checkpoints_uri,
        **_valid_metadata([made], run_state, now_ms),
    }


def _snapshots_metadata(made: Sequence[Checkpoint]) -> Metadata:
    """Return the metadata of a run's checkpoints."""
    return {
        "gateways": ", ".join(each.gateway for each in made),
        "tables": sum(len(each.tables) for each in made),
        "arrivals": dg.MetadataValue.json({each.gateway: str(each.arrival) for each in made}),
        "snapshot_ids": dg.MetadataValue.json(_snapshots(made)),
    }


def _valid_metadata(made: Sequence[Checkpoint], run_state: RunState, now_ms: int) -> Metadata:
    """Return the metadata of freshness: the time up to which the checkpoints have all changes.

    A run merges the tables up to each gateway's cut point, an arrival. A checkpoint that did not need to change has all
    changes up to there, although its own arrival is earlier.
    """
    arrivals = {each.gateway: each.arrival for each in made}
    for gateway, point in run_state.cut_points().items():
        if gateway in arrivals:
            arrivals[gateway] = max(arrivals[gateway], point.arrival)
    return freshness_metadata(min(map(wall_of, arrivals.values()), default=None), now_ms)


def _version(made: Sequence[Checkpoint]) -> dg.DataVersion:
    """Return a data version that changes with the snapshots and with the versions of the sync rules."""
    return content_version([_snapshots(made), {each.gateway: each.rules_version for each in made}])


def _snapshots(made: Sequence[Checkpoint]) -> dict[str, dict[str, str]]:
    """Return gateway → state table → id of the Iceberg snapshot from which its checkpoint was made."""
    return {each.gateway: {table.table: str(table.snapshot_id) for table in each.tables} for each in made}
