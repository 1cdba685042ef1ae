"""Steps of an erasure beyond the lake, after the history's: one for each leaf, pair of tiers, flow and migration.

Each runs in the pool of what moves there, so nothing is brought from one place to another meanwhile. A place that is
read from is cleared too: else the next run would bring again what was erased.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from assets.asset_metadata import leaf_key, leaf_pool
from assets.destinations import all_leaves, follower
from assets.erasure_landed import Due, erasing_op
from assets.failure_policy import failure_policy
from assets.flows import flow_key
from assets.flows import works as flow_works
from assets.migration import migration_key
from assets.tiering import tier_key
from lakesync.adapters.backend_config import SingleBackend, WriteTarget, resolve_backend, single_backends
from lakesync.config import Config
from lakesync.config.backends import LAKE, DeclaredDestination, DeclaredFlow
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.run_state import RunState
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakehouse.erasure.backends import Erasing
    from lakesync.adapters.redaction import RedactionRequest


def cleared_leaves(config: Config, due: Due) -> tuple[list[dg.OpDefinition], list[dg.OpDefinition]]:
    """A step for each leaf of each destination, in the pool in which it follows.

    Args:
        config: the configuration.
        due: what is to be erased.

    Returns:
        The steps of leaves, and of those with something cold, which come after the tiers'.
    """
    hot: list[dg.OpDefinition] = []
    cold: list[dg.OpDefinition] = []
    for name, declared, leaf in all_leaves(config):
        step = _cleared(
            leaf_key(name, leaf.name),
            leaf_pool(name, leaf.name),
            f"The leaf `{leaf.name}` of the destination `{name}`, and what is cold of it, without erased values.",
            due,
            partial(_of_leaf, name, declared, leaf),
        )
        (cold if leaf.cold else hot).append(step)
    return hot, cold


def cleared_tiers(config: Config, due: Due) -> list[dg.OpDefinition]:
    """A step for each pair of tiers, in the pool in which deltas move: else one could bring back what it has read.

    Args: as `cleared_leaves`.
    """
    return [
        _cleared(
            tier_key(name),
            f"lakesync_tier_{name}",
            f"The deltas of both tiers of `{name}` without erased values.",
            due,
            partial(_of_tiers, single_backends(resolve_backend(config, name))),
        )
        for name in config.tiers
    ]


def cleared_flows(config: Config, due: Due) -> list[dg.OpDefinition]:
    """A step for each flow: where it leads to and where it comes from, but for the lake.

    Args: as `cleared_leaves`.
    """
    return [
        _cleared(
            flow_key(name),
            f"lakesync_flow_{name}",
            f"Both ends of the flow `{name}` without erased values.",
            due,
            partial(_of_flow, config, name, declared),
        )
        for name, declared in config.flows.items()
    ]


def cleared_migrations(config: Config, due: Due) -> list[dg.OpDefinition]:
    """A step for each migration: where it leads to and where it comes from, but for the lake.

    Args: as `cleared_leaves`.
    """
    return [
        _cleared(
            migration_key(name),
            f"lakesync_migration_{name}",
            f"Both ends of the migration `{name}` without erased values.",
            due,
            partial(_of_ends, config, (declared.to, declared.source)),
        )
        for name, declared in config.migrations.items()
    ]


def _of_leaf(
    name: str,
    declared: DeclaredDestination,
    leaf: WriteTarget,
    store: PipelineStore,
    requests: "tuple[RedactionRequest, ...]",
) -> "list[Erasing]":
    from lakehouse.erasure.backends import Erasing

    schemas = follower(store, name, declared, leaf).schemas
    return [Erasing(SingleBackend(leaf.name, leaf.uri), requests, schemas, leaf.cold)]


def _of_tiers(
    backends: Sequence[SingleBackend], _store: PipelineStore, requests: "tuple[RedactionRequest, ...]"
) -> "list[Erasing]":
    from lakehouse.erasure.backends import Erasing

    return [Erasing(each, requests) for each in backends]


def _of_flow(
    config: Config, name: str, declared: DeclaredFlow, store: PipelineStore, requests: "tuple[RedactionRequest, ...]"
) -> "list[Erasing]":
    from lakehouse.erasure.backends import Erasing

    targets = flow_works(config, store, name, declared) if declared.to != LAKE else []
    return [
        *(
            Erasing(SingleBackend(to.leaf.name, to.leaf.uri), requests, to.schemas, to.leaf.cold, to.row_filter)
            for to in targets
        ),
        *_of_ends(config, (declared.source,), store, requests),
    ]


def _of_ends(
    config: Config, places: Sequence[str], _store: PipelineStore, requests: "tuple[RedactionRequest, ...]"
) -> "list[Erasing]":
    from lakehouse.erasure.backends import Erasing

    return [Erasing(each, requests) for each in _backends(config, places)]


def _backends(config: Config, places: Sequence[str]) -> list[SingleBackend]:
    """Every adapter of declared places but the lake, each once."""
    found = (each for place in places if place != LAKE for each in single_backends(resolve_backend(config, place)))
    return list({each.name: each for each in found}.values())


def _cleared(
    place: dg.AssetKey,
    pool: str,
    description: str,
    due: Due,
    works: "Callable[[PipelineStore, tuple[RedactionRequest, ...]], list[Erasing]]",
) -> dg.OpDefinition:
    @erasing_op(place.path, pool, description)
    def cleared(
        context: dg.OpExecutionContext,
        pyspark: SparkConnectResource,
        lake: LakeResource,
        staging: StagingResource,
        run_state: dg.ResourceParam[RunState],
    ) -> None:
        from lakehouse.erasure.backends import ErasedThere, erase_there, redactions

        with failure_policy(context, pyspark, retried=False):
            spark, store = pyspark.spark_session, staging.store
            requests = redactions(spark, found, lake.names) if (found := due(store)) else ()
            done = erase_there(spark, works(store, requests)) if requests else ErasedThere()
        metadata = {"deltas": done.deltas, "rows": done.rows}
        run_state.erased[place.to_user_string()] = metadata
        context.add_output_metadata(metadata)

    return cleared
