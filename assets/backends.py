"""External assets for the backends that flows, tiers and migrations read, where their lineage begins.

`lakesync_dagster.movement` creates them.
"""

from collections.abc import Sequence

import dagster as dg

from assets.asset_metadata import DELTAS, OWNERS, target_key
from lakehouse.backends.declared import destination_targets
from lakesync.adapters.backend_config import resolve_backend, single_backends
from lakesync.adapters.uri import without_password
from lakesync.config import Config
from lakesync.config.backends import LAKE

KINDS = {"mysql": "mysql", "postgresql": "postgres"}
"""Scheme of an adapter's URI → the kind that its assets show. Other schemes are shown as they are."""


def backend_key(name: str) -> dg.AssetKey:
    """Return the key of an adapter's external asset."""
    return dg.AssetKey(["backends", name])


def kind_of(uri: str) -> str:
    """Return the kind of a backend, by its URI."""
    scheme = uri.partition(":")[0]
    return KINDS.get(scheme, scheme)


def source_keys(config: Config, backend: str) -> Sequence[dg.AssetKey]:
    """Return the upstream assets of an asset that reads a backend.

    Args:
        config: declares the backends.
        backend: name of a backend, or `lake`.
    """
    if backend == LAKE:
        return [DELTAS]
    return [backend_key(each.name) for each in single_backends(resolve_backend(config, backend))]


def backends(config: Config) -> list[dg.AssetSpec]:
    """Create an external asset for each adapter that a flow, tiers or a migration reads.

    Upstream of it are the destinations that write to the adapter.

    Args:
        config: declares the backends.
    """
    written: dict[str, list[dg.AssetKey]] = {}
    for each in destination_targets(config):
        written.setdefault(each.target.name, []).append(target_key(each.destination, each.target.name))
    read = [*(flow.source for flow in config.flows.values()), *(each.source for each in config.migrations.values())]
    read += [tiers.hot for tiers in config.tiers.values()]
    found = {
        each.name: each for name in read if name != LAKE for each in single_backends(resolve_backend(config, name))
    }
    return [
        dg.AssetSpec(
            backend_key(name),
            deps=written.get(name, []),
            description=f"The backend `{name}`, which other programs may write too.",
            group_name="backends",
            kinds={kind_of(backend.uri)},
            owners=OWNERS,
            metadata={"dagster/uri": without_password(backend.uri)},
        )
        for name, backend in sorted(found.items())
    ]
