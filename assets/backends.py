"""Backends that something is read from, as external assets: where the lineage of flows and migrations begins."""

from collections.abc import Sequence

import dagster as dg

from assets.asset_metadata import DELTAS, OWNERS, leaf_key
from lakesync.adapters.backend_config import resolve_backend, single_backends, write_targets
from lakesync.adapters.uri import without_password
from lakesync.config import Config
from lakesync.config.backends import LAKE

KINDS = {"mysql": "mysql", "postgresql": "postgres"}
"""Scheme of an adapter's URI → the kind that its assets show; another scheme is its own."""


def backend_key(name: str) -> dg.AssetKey:
    """Return the external asset of an adapter."""
    return dg.AssetKey(["backends", name])


def kind_of(uri: str) -> str:
    """Return the kind of a backend, by its URI."""
    scheme = uri.partition(":")[0]
    return KINDS.get(scheme, scheme)


def source_keys(config: Config, place: str) -> Sequence[dg.AssetKey]:
    """Return the assets upstream of one that reads a place.

    Args:
        config: declares the places.
        place: the lake, an adapter or a composition of adapters.
    """
    if place == LAKE:
        return [DELTAS]
    return [backend_key(each.name) for each in single_backends(resolve_backend(config, place))]


def backends(config: Config) -> list[dg.AssetSpec]:
    """Return an external asset for each adapter that a flow, tiers or a migration reads, behind what fills it."""
    filled: dict[str, list[dg.AssetKey]] = {}
    for name, declared in config.destinations.items():
        for leaf in write_targets(resolve_backend(config, declared.to), declared.tables):
            filled.setdefault(leaf.name, []).append(leaf_key(name, leaf.name))
    read = [*(flow.source for flow in config.flows.values()), *(each.source for each in config.migrations.values())]
    read += [tiers.hot for tiers in config.tiers.values()]
    found = {
        each.name: each for place in read if place != LAKE for each in single_backends(resolve_backend(config, place))
    }
    return [
        dg.AssetSpec(
            backend_key(name),
            deps=filled.get(name, []),
            description=f"The backend `{name}`, which others may write too.",
            group_name="backends",
            kinds={kind_of(backend.uri)},
            owners=OWNERS,
            metadata={"dagster/uri": without_password(backend.uri)},
        )
        for name, backend in sorted(found.items())
    ]
