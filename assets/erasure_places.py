"""Erasure beyond the lake, behind the history's: a step for each leaf, pair of tiers, flow and migration.

Each runs in the pool of what moves there, so nothing is brought from one place to another meanwhile. A place that is
read from is cleared too: else the next run would bring again what was erased.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from assets.backends import kind_of
from assets.destinations import all_leaves, follower
from assets.erasure_landed import Due
from assets.flows import flow_key
from assets.flows import works as flow_works
from assets.labels import OWNERS, leaf_key
from assets.migration import migration_key
from assets.outcome import outcome
from assets.series import newest
from assets.tiering import tier_key
from lakesync.adapters.places import Backend, Leaf, backends_of, place_of
from lakesync.config import Config
from lakesync.config_places import LAKE, DeclaredDestination, DeclaredFlow
from lakesync.staging.store import PipelineStore
from resources.gateways import StagingResource
from resources.lake import LakeResource
from resources.spark import SparkConnectResource

if TYPE_CHECKING:
    from lakesync.adapters.redaction import Redaction
    from resources.erasing import Erasing


def cleared_leaves(config: Config, group: str, after: dg.AssetKey, due: Due) -> list[dg.AssetsDefinition]:
    """A step for each leaf of each destination, in the pool in which it follows.

    Args:
        config: the configuration.
        group: of the steps.
        after: the step that redacts the lake's history.
        due: what is to be erased.
    """
    tiers = [dg.AssetKey([group, *tier_key(name).path]) for name in config.tiers]
    return [
        _cleared(
            group,
            leaf_key(name, leaf.name),
            [after, *(tiers if leaf.cold else ())],
            f"lakesync_destination_{name}_{leaf.name}",
            f"The leaf `{leaf.name}` of the destination `{name}`, and what is cold of it, without erased values.",
            {kind_of(leaf.uri)},
            due,
            partial(_of_leaf, name, declared, leaf),
        )
        for name, declared, leaf in all_leaves(config)
    ]


def cleared_tiers(config: Config, group: str, after: dg.AssetKey, due: Due) -> list[dg.AssetsDefinition]:
    """A step for each pair of tiers, in the pool in which deltas move: else one could bring back what it has read.

    Args: as `cleared_leaves`.
    """
    places = {name: backends_of(place_of(config, name)) for name in config.tiers}
    return [
        _cleared(
            group,
            tier_key(name),
            [after],
            f"lakesync_tier_{name}",
            f"The deltas of both tiers of `{name}` without erased values.",
            {kind_of(each.uri) for each in backends},
            due,
            partial(_of_tiers, backends),
        )
        for name, backends in places.items()
    ]


def cleared_flows(config: Config, group: str, after: dg.AssetKey, due: Due) -> list[dg.AssetsDefinition]:
    """A step for each flow: where it leads to and where it comes from, but for the lake.

    Args: as `cleared_leaves`.
    """
    return [
        _cleared(
            group,
            flow_key(name),
            [after],
            f"lakesync_flow_{name}",
            f"Both ends of the flow `{name}` without erased values.",
            _kinds(config, declared.source, declared.to),
            due,
            partial(_of_flow, config, name, declared),
        )
        for name, declared in config.flows.items()
    ]


def cleared_migrations(config: Config, group: str, after: dg.AssetKey, due: Due) -> list[dg.AssetsDefinition]:
    """A step for each migration: where it leads to and where it comes from, but for the lake.

    Args: as `cleared_leaves`.
    """
    return [
        _cleared(
            group,
            migration_key(name),
            [after],
            f"lakesync_migration_{name}",
            f"Both ends of the migration `{name}` without erased values.",
            _kinds(config, declared.source, declared.to),
            due,
            partial(_of_ends, config, (declared.to, declared.source)),
        )
        for name, declared in config.migrations.items()
    ]


def told_of(instance: dg.DagsterInstance, steps: Sequence[dg.AssetsDefinition]) -> dict[str, dict[str, int]]:
    """What each of these steps said last of deltas and rows, by its place."""
    told = {}
    for step in steps:
        made = newest(instance, step.key)
        found = made.metadata if made else {}
        counts = {name: int(str(found[name].value)) for name in ("deltas", "rows") if name in found}
        told["/".join(step.key.path[1:])] = counts
    return told


def _of_leaf(
    name: str, declared: DeclaredDestination, leaf: Leaf, store: PipelineStore, requests: "tuple[Redaction, ...]"
) -> "list[Erasing]":
    from resources.erasing import Erasing

    schemas = follower(store, name, declared, leaf).schemas
    return [Erasing(Backend(leaf.name, leaf.uri), requests, schemas, leaf.cold)]


def _of_tiers(backends: Sequence[Backend], _store: PipelineStore, requests: "tuple[Redaction, ...]") -> "list[Erasing]":
    from resources.erasing import Erasing

    return [Erasing(each, requests) for each in backends]


def _of_flow(
    config: Config, name: str, declared: DeclaredFlow, store: PipelineStore, requests: "tuple[Redaction, ...]"
) -> "list[Erasing]":
    from resources.erasing import Erasing

    targets = flow_works(config, store, name, declared) if declared.to != LAKE else []
    return [
        *(Erasing(Backend(to.leaf.name, to.leaf.uri), requests, to.schemas, to.leaf.cold, to.sieve) for to in targets),
        *_of_ends(config, (declared.source,), store, requests),
    ]


def _of_ends(
    config: Config, places: Sequence[str], _store: PipelineStore, requests: "tuple[Redaction, ...]"
) -> "list[Erasing]":
    from resources.erasing import Erasing

    return [Erasing(each, requests) for each in _backends(config, places)]


def _backends(config: Config, places: Sequence[str]) -> list[Backend]:
    """Every adapter of declared places but the lake, each once."""
    found = (each for place in places if place != LAKE for each in backends_of(place_of(config, place)))
    return list({each.name: each for each in found}.values())


def _kinds(config: Config, *places: str) -> set[str]:
    return {kind_of(each.uri) for each in _backends(config, places)}


def _cleared(
    group: str,
    moved: dg.AssetKey,
    after: Sequence[dg.AssetKey],
    pool: str,
    description: str,
    kinds: set[str],
    due: Due,
    works: "Callable[[PipelineStore, tuple[Redaction, ...]], list[Erasing]]",
) -> dg.AssetsDefinition:
    @dg.asset(
        key=dg.AssetKey([group, *moved.path]),
        deps=[*after, moved],
        pool=pool,
        description=description,
        group_name=group,
        kinds={"spark", *kinds},
        owners=OWNERS,
    )
    def cleared(
        context: dg.AssetExecutionContext, pyspark: SparkConnectResource, lake: LakeResource, staging: StagingResource
    ) -> dg.MaterializeResult[None]:
        from resources.erasing import ErasedThere, erase_there, redactions

        with outcome(context, pyspark, retried=False):
            spark, store = pyspark.spark_session, staging.store
            requests = redactions(spark, found, lake.names) if (found := due(store)) else ()
            done = erase_there(spark, works(store, requests)) if requests else ErasedThere()
        return dg.MaterializeResult(metadata={"deltas": done.deltas, "rows": done.rows})

    return cleared
