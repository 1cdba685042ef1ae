"""The backends of `lakesync.toml`: resolved to plain values that can be sent to a Spark task, and opened there.

A backend stores *deltas*, the changes of rows. It is one *adapter* (a database or object store), or several: each for
some tables (routes), one with copies (fan-out), or two by the age of the deltas (a *hot tier* with recent ones, a *cold
tier* with older ones). `docs/adapters.md` describes them. The pipeline, the gateway server (for sources, from which
clients pull), `lakesync dlq` (values that a database rejected) and `lakesync up` resolve backends by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.composite import CompositeAdapter, LifecycleAdapter, Route
from lakesync.adapters.registry import as_database, open_adapter
from lakesync.config.backends import LAKE, Target
from lakesync.config.iceberg_catalogue import catalogue_settings, catalogue_uri, pyiceberg_properties
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from lakesync.config import Config

DAY_MS = 86_400_000
"""Milliseconds in a day."""


class SingleBackend(msgspec.Struct, frozen=True, tag=True):
    """One adapter."""

    name: str
    """Its name in `[adapters]`, or `lake`."""
    uri: str
    """As `open_adapter` reads it."""


class RoutedBackend(msgspec.Struct, frozen=True, tag=True):
    """Tables routed to different backends."""

    tables: dict[str, Backend]
    """Table → backend."""
    default: Backend
    """Stores all other tables."""


class ReplicatedBackend(msgspec.Struct, frozen=True, tag=True):
    """A fan-out: a primary backend, which is read, and secondaries to which the pipeline copies the same deltas."""

    primary: Backend
    secondaries: tuple[Backend, ...]


class TieredBackend(msgspec.Struct, frozen=True, tag=True):
    """A hot backend for recent deltas and a cold one for old deltas."""

    hot: Backend
    cold: Backend
    max_age_ms: int
    """Age by hlc (the client's timestamp) above which deltas move to the cold tier."""


Backend = SingleBackend | RoutedBackend | ReplicatedBackend | TieredBackend
"""One adapter or a composition of backends, as plain values."""


class WriteTarget(msgspec.Struct, frozen=True):
    """One adapter that a backend writes to, and which tables it receives."""

    name: str
    """Its name in `[adapters]`, or `lake`."""
    uri: str
    """As `open_adapter` reads it."""
    tables: tuple[str, ...] = ()
    """Only these tables; empty means every table."""
    without: tuple[str, ...] = ()
    """Except these tables."""
    cold: tuple[Backend, ...] = ()
    """Cold tiers, if the adapter is a hot tier: they may store older deltas of the same rows."""


def resolve_backend(config: Config, name: str) -> Backend:
    """Resolve a name declared in the configuration. `lake` resolves to the lake's history, which is read only.

    Args:
        config: the configuration.
        name: a name of `[adapters]`, `[routes]`, `[fan_out]` or `[tiers]`.

    Raises:
        ConfigurationError: the name is not declared.
    """
    if name == LAKE:
        return SingleBackend(LAKE, _lake_uri(config))
    if name in config.adapters:
        return SingleBackend(name, config.adapters[name])
    if name in config.routes:
        routes = config.routes[name]
        tables = {table: resolve_backend(config, inner) for table, inner in routes.tables.items()}
        return RoutedBackend(tables, resolve_backend(config, routes.default))
    if name in config.fan_out:
        fan_out = config.fan_out[name]
        secondaries = tuple(resolve_backend(config, inner) for inner in fan_out.secondaries)
        return ReplicatedBackend(resolve_backend(config, fan_out.primary), secondaries)
    if name in config.tiers:
        tiers = config.tiers[name]
        max_age_ms = round(tiers.max_age_days * DAY_MS)
        return TieredBackend(resolve_backend(config, tiers.hot), resolve_backend(config, tiers.cold), max_age_ms)
    raise ConfigurationError(f"no backend {name!r} is declared: add it to [adapters], [routes], [fan_out] or [tiers]")


def write_targets(config: Config, name: str, tables: tuple[str, ...] = ()) -> list[WriteTarget]:
    """Return the adapters that a backend writes to. Those include secondaries, but not cold tiers, which tiers fill.

    Args:
        config: the configuration.
        name: the backend's name, which the configuration declares; not `lake`.
        tables: only these tables; empty means every table.

    Raises:
        ConfigurationError: the backend leads to an adapter in two ways. Its progress has one mark, by its name.
    """
    targets = list(config.backends.targets(Target(name, tables)))
    names = [target.name for target in targets]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ConfigurationError(
            f"the backend leads to the adapter {repeated!r} in two ways, and a writer has one mark for each adapter: "
            "name it once, or declare a second adapter"
        )
    return [
        WriteTarget(
            adapter, config.adapters[adapter], only, without, tuple(resolve_backend(config, tier) for tier in cold)
        )
        for adapter, only, without, cold in targets
    ]


def single_backends(backend: Backend) -> list[SingleBackend]:
    """Return every adapter of a backend, each once."""
    match backend:
        case SingleBackend():
            found = [backend]
        case ReplicatedBackend():
            found = [each for inner in (backend.primary, *backend.secondaries) for each in single_backends(inner)]
        case TieredBackend():
            found = [*single_backends(backend.hot), *single_backends(backend.cold)]
        case RoutedBackend():
            found = [each for inner in (*backend.tables.values(), backend.default) for each in single_backends(inner)]
    return list({each.name: each for each in found}.values())


def named_adapters(config: Config, names: Iterable[str]) -> list[SingleBackend]:
    """Return every adapter of some backends, each once, except the lake.

    Args:
        config: the configuration, which declares the backends.
        names: names of the backends, as `resolve_backend` takes them.
    """
    found = (each for name in names if name != LAKE for each in single_backends(resolve_backend(config, name)))
    return list({each.name: each for each in found}.values())


def open_backend(backend: Backend) -> DatabaseAdapter:
    """Open a backend as one adapter, to read it. Of a replicated backend only the primary is opened.

    Raises:
        ConfigurationError: no adapter has the scheme, or its package cannot be loaded.
        AdapterError: a backend cannot be opened.
    """
    with ExitStack() as opening:
        opened: dict[str, DatabaseAdapter] = {}

        def open_once(single: SingleBackend) -> DatabaseAdapter:
            if single.name not in opened:
                opened[single.name] = as_database(open_adapter(single.uri))
                opening.callback(opened[single.name].close)
            return opened[single.name]

        adapter = _open(backend, open_once)
        opening.pop_all()  # all are open: `opening` closes them only if one of them cannot be opened
        return adapter


def _open(backend: Backend, open_once: Callable[[SingleBackend], DatabaseAdapter]) -> DatabaseAdapter:
    """Open a backend; `open_once` opens its adapters, each once even if several routes lead to it."""
    match backend:
        case SingleBackend():
            return open_once(backend)
        case ReplicatedBackend():
            return _open(backend.primary, open_once)
        case TieredBackend():
            return LifecycleAdapter(_open(backend.hot, open_once), _open(backend.cold, open_once), backend.max_age_ms)
        case RoutedBackend():
            routes = [Route(frozenset({table}), _open(inner, open_once)) for table, inner in backend.tables.items()]
            return CompositeAdapter(routes, _open(backend.default, open_once))


def _lake_uri(config: Config) -> str:
    """Return the URI with which pyiceberg opens the lake."""
    lake = config.lake
    kind = "rest" if lake.catalog_uri.startswith("http") else "sql"
    options = {
        **pyiceberg_properties(catalogue_settings(config)),
        "catalogue": lake.catalog,
        "type": kind,
        "uri": catalogue_uri(config),
        "warehouse": lake.warehouse,
    }
    if kind == "sql":
        options["init_catalog_tables"] = "false"  # Spark has created them
    return f"iceberg://{lake.system_namespace}?{urlencode(options)}"
