"""Steps of the asset `erasure` for connectors and for backends beyond the lake. They run after the history's step.

Each step runs in the pool of what writes there, so nothing is copied from one backend to another meanwhile. A backend
that is only read is erased too: otherwise the next run would copy erased values again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from assets.asset_metadata import target_key, target_pool
from assets.failure_policy import failure_policy
from assets.flows import flow_key
from assets.ingest import GROUP as INGEST
from assets.ingest import connector_pool
from assets.migration import migration_key
from assets.tiering import tier_key
from lakehouse.backends.declared import destination_targets
from lakehouse.erasure.declared import backend_erasures, flow_erasures, target_erasures
from lakehouse.run_state import RunState
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakesync.config import Config
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakehouse.erasure.backends import BackendErasure
    from lakesync.adapters.redaction import RedactionRequest

    Erasures = Callable[[PipelineStore, tuple[RedactionRequest, ...]], list[BackendErasure]]

ERASE = "erase"
"""Name of the graph, and prefix of the names of its steps, which differ so from the steps of other assets."""


def erasure_op(path: Sequence[str], pool: str, description: str) -> Callable[[Callable[..., None]], dg.OpDefinition]:
    """Return a decorator that makes a function a step of the erasure.

    Args:
        path: what the step erases in, as the path of an asset's key.
        pool: pool of the steps that write there.
        description: what is left after the step.
    """
    return dg.op(
        name=dg.AssetKey([ERASE, *path]).to_python_identifier(),
        ins={"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        pool=pool,
        description=description,
    )


def connector_steps(snapshot: SchemaSnapshot) -> tuple[list[dg.OpDefinition], list[dg.OpDefinition]]:
    """Create a step for each connector, and steps that delete the old snapshots of `landing` and `known` after them.

    Args:
        snapshot: names the connectors.
    """
    steps = [_connector_step(each) for each in snapshot.connectors]
    return steps, [_snapshot_step(table) for table in ("landing", "known") if steps]


def destination_steps(config: Config) -> tuple[list[dg.OpDefinition], list[dg.OpDefinition]]:
    """Create a step for each adapter of each destination.

    Args:
        config: declares the destinations.

    Returns:
        The steps of adapters without cold tiers, and of those with some, which come after the steps of tiers.
    """
    hot: list[dg.OpDefinition] = []
    cold: list[dg.OpDefinition] = []
    for each in destination_targets(config):
        name, target = each.destination, each.target
        step = _backend_step(
            target_key(name, target.name),
            target_pool(name, target.name),
            f"The adapter `{target.name}` of the destination `{name}`, and its cold tiers, without erased values.",
            partial(target_erasures, each),
        )
        (cold if target.cold else hot).append(step)
    return hot, cold


def tier_steps(config: Config) -> list[dg.OpDefinition]:
    """Create a step for each pair of tiers, in the pool of its moves.

    Args:
        config: declares the tiers.
    """
    return [
        _backend_step(
            tier_key(name),
            f"lakesync_tier_{name}",
            f"The deltas of both tiers of `{name}` without erased values.",
            partial(backend_erasures, config, (name,)),
        )
        for name in config.tiers
    ]


def flow_steps(config: Config) -> list[dg.OpDefinition]:
    """Create a step for each flow: for what it writes and what it reads.

    Args:
        config: declares the flows.
    """
    return [
        _backend_step(
            flow_key(name),
            f"lakesync_flow_{name}",
            f"Both ends of the flow `{name}` without erased values.",
            partial(flow_erasures, config, name, declared),
        )
        for name, declared in config.flows.items()
    ]


def migration_steps(config: Config) -> list[dg.OpDefinition]:
    """Create a step for each migration: for what it writes and what it reads.

    Args:
        config: declares the migrations.
    """
    return [
        _backend_step(
            migration_key(name),
            f"lakesync_migration_{name}",
            f"Both ends of the migration `{name}` without erased values.",
            partial(backend_erasures, config, (declared.to, declared.source)),
        )
        for name, declared in config.migrations.items()
    ]


def _connector_step(connector: PolledConnector) -> dg.OpDefinition:
    gateway, name = connector.gateway, connector.name
    pool = connector_pool(gateway, name)

    # by the pool's name: Dagster would take names that differ in one special character for the same step
    @erasure_op((INGEST, pool), pool, f"What `{name}` brought to gateway `{gateway}`, without erased rows.")
    def erased(
        context: dg.OpExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> None:
        from lakehouse.erasure.landed import erase_landed
        from lakehouse.erasure.requests import due_requests

        with failure_policy(context, pyspark):
            requests = {gateway: due_requests(staging.store).get(gateway, [])}
            done = erase_landed(pyspark.spark_session, requests, lake.names, name)
        context.add_output_metadata({"landed": done.landed, "known": done.known})

    return erased


def _snapshot_step(table: str) -> dg.OpDefinition:
    @erasure_op(
        (INGEST, table), f"lakesync_{table}", f"The table `{table}` without the snapshots that have erased rows."
    )
    def erased(
        context: dg.OpExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> None:
        from lakehouse.erasure.landed import erase_landed, forget_landed
        from lakehouse.erasure.requests import due_requests
        from lakehouse.landing.tables import known_name, landing_name

        with failure_policy(context, pyspark):
            spark, requests, names = pyspark.spark_session, due_requests(staging.store), lake.names
            forgotten = False
            if requests:
                erase_landed(spark, requests, names)  # of connectors that are no longer declared, too
                name = landing_name(names) if table == "landing" else known_name(names)
                forgotten = forget_landed(spark, name, names)
        context.add_output_metadata({"past_forgotten": forgotten})

    return erased


def _backend_step(asset: dg.AssetKey, pool: str, description: str, erasures: "Erasures") -> dg.OpDefinition:
    @erasure_op(asset.path, pool, description)
    def erased(
        context: dg.OpExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> None:
        from lakehouse.erasure.backends import ErasedCounts, erase_in_backends, redactions
        from lakehouse.erasure.requests import due_requests

        with failure_policy(context, pyspark, retried=False):
            spark, store = pyspark.spark_session, staging.store
            requests = redactions(spark, due, lake.names) if (due := due_requests(store)) else ()
            done = erase_in_backends(spark, erasures(store, requests)) if requests else ErasedCounts()
        metadata = {"deltas": done.deltas, "rows": done.rows}
        run_state.erased[asset.to_user_string()] = metadata
        context.add_output_metadata(metadata)

    return erased
