"""Creates external assets, with which lineage begins: clients' tables, staging's log, and backends that are read.

Dagster does not materialise external assets; it only shows them upstream of those that it does. Staging's log has the
deltas (changes) that gateways (streams of changes, one for each app) have accepted from clients, and that the lake
lacks. A backend is a name that `lakesync.toml` declares for an adapter, which is access to one database or object
store, or for a combination of them. The code location (`lakesync_dagster.definitions`) calls this module; the assets of
destinations and transfers (flows, migrations and tiers, which copy deltas between backends) use the kinds and keys of
backends.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import dagster as dg

from assets.columns import client_columns, followed_columns
from assets.names import DELTAS, LOG, client_key, polled_key, target_key
from lakehouse.backends.declared import destination_targets
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.adapters.backend_config import named_adapters, resolve_backend, single_backends
from lakesync.config import Config
from lakesync.config.backends import LAKE
from lakesync.model.secrets import without_password
from resources.stores import staging_uri

KINDS = {"mysql": "mysql", "postgresql": "postgres"}
"""Scheme of an adapter's URI → the kind of its assets on Dagster's pages. Other schemes are kinds themselves."""


def sources(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetSpec]:
    """Create an external asset for each synced table in clients' databases, and one for the log of all pushes.

    Args:
        snapshot: the registered tables, with the gateways that have each of them, and the connectors, which push what
            they read from external systems.
        config: the project's configuration, with the URL of the staging store.
    """
    clients = [
        dg.AssetSpec(
            client_key(schema.table),
            description=f"The table `{schema.table}` in the clients' own databases, edited offline and pushed.",
            group_name="clients",
            kinds={"sqlite", "client"},
            metadata={
                "dagster/column_schema": client_columns(schema),
                "gateways": list(snapshot.gateways.get(schema.table, ())),
            },
        )
        for schema in snapshot.tables
    ]
    polled = [polled_key(each.gateway, each.name, table) for each in snapshot.connectors for table in each.tables]
    log = dg.AssetSpec(
        LOG,
        deps=[*(spec.key for spec in clients), *polled],
        description="Acknowledged and unflushed deltas in the gateway's staging log.",
        group_name="gateway",
        kinds={"lakesync", "log"},
        metadata={"dagster/uri": staging_uri(config)},
    )
    return [*clients, log]


def backend_key(name: str) -> dg.AssetKey:
    """Return the key of the external asset of a backend that is read.

    Args:
        name: the backend's name in the configuration.
    """
    return dg.AssetKey(["backends", name])


def kind_of(uri: str) -> str:
    """Return the kind, for Dagster's pages, of an asset that is stored at an adapter with this URI."""
    scheme = uri.partition(":")[0]
    return KINDS.get(scheme, scheme)


def target_metadata(uris: Iterable[str]) -> dict[str, dg.TableSchema | str]:
    """Return the metadata of an asset whose deltas are stored at adapters; without adapters they are in the lake.

    Args:
        uris: the adapters' URIs. Their passwords are left out.
    """
    return {
        "dagster/column_schema": followed_columns(),
        "dagster/uri": ", ".join(map(without_password, uris)) or LAKE,
    }


def source_keys(config: Config, backend: str) -> Sequence[dg.AssetKey]:
    """Return the upstream assets of an asset that reads a backend, one for each adapter that the backend consists of.

    Args:
        config: the project's configuration, which declares the backends.
        backend: name of a backend, or `lake` for the history `deltas`.
    """
    if backend == LAKE:
        return [DELTAS]
    return [backend_key(each.name) for each in single_backends(resolve_backend(config, backend))]


def backends(config: Config) -> list[dg.AssetSpec]:
    """Create an external asset for each adapter that a flow, tiers or a migration reads.

    The destinations that write to the adapter are upstream of it.

    Args:
        config: the project's configuration, which declares the backends.
    """
    written: dict[str, list[dg.AssetKey]] = {}  # adapter → the assets of destinations that write to it
    for each in destination_targets(config):
        written.setdefault(each.target.name, []).append(target_key(each.destination, each.target.name))
    read = [*(flow.source for flow in config.flows.values()), *(each.source for each in config.migrations.values())]
    read += [tiers.hot for tiers in config.tiers.values()]
    return [
        dg.AssetSpec(
            backend_key(backend.name),
            deps=written.get(backend.name, []),
            description=f"The backend `{backend.name}`, which other programs may write too.",
            group_name="backends",
            kinds={kind_of(backend.uri)},
            metadata={"dagster/uri": without_password(backend.uri)},
        )
        for backend in sorted(named_adapters(config, read), key=attrgetter("name"))
    ]
