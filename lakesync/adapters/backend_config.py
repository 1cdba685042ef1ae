"""The backends of `lakesync.toml`: resolved to plain values that can be sent to a Spark task, and opened there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.compositions.composite import CompositeAdapter, Route
from lakesync.adapters.compositions.lifecycle import LifecycleAdapter
from lakesync.adapters.registry import as_database, open_adapter
from lakesync.config.backends import LAKE
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from lakesync.config import Config

DAY_MS = 86_400_000


class SingleBackend(msgspec.Struct, frozen=True, tag=True):
    """One adapter."""

    name: str
    uri: str


class RoutedBackend(msgspec.Struct, frozen=True, tag=True):
    """Tables routed to different backends."""

    tables: dict[str, Backend]
    default: Backend


class ReplicatedBackend(msgspec.Struct, frozen=True, tag=True):
    """A primary backend and secondaries that follow it."""

    primary: Backend
    secondaries: tuple[Backend, ...]


class TieredBackend(msgspec.Struct, frozen=True, tag=True):
    """A hot backend for recent deltas and a cold one for old deltas."""

    hot: Backend
    cold: Backend
    max_age_ms: int


Backend = SingleBackend | RoutedBackend | ReplicatedBackend | TieredBackend


class WriteTarget(msgspec.Struct, frozen=True):
    """One adapter that a backend writes to, and which tables it receives."""

    name: str
    uri: str
    tables: tuple[str, ...] = ()
    """Only these tables; empty means every table."""
    without: tuple[str, ...] = ()
    """Except these tables."""
    cold: tuple[Backend, ...] = ()
    """Cold tiers that may store older deltas of the same rows."""


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
        followers = tuple(resolve_backend(config, inner) for inner in fan_out.secondaries)
        return ReplicatedBackend(resolve_backend(config, fan_out.primary), followers)
    if name in config.tiers:
        tiers = config.tiers[name]
        age = round(tiers.max_age_days * DAY_MS)
        return TieredBackend(resolve_backend(config, tiers.hot), resolve_backend(config, tiers.cold), age)
    raise ConfigurationError(f"no backend {name!r} is declared: add it to [adapters], [routes], [fan_out] or [tiers]")


def write_targets(place: Backend, tables: tuple[str, ...] = ()) -> list[WriteTarget]:
    """Return the adapters that a backend writes to: routes, the primary, each secondary, and hot tiers only.

    Args:
        place: the backend.
        tables: only these tables; empty means every table.

    Raises:
        ConfigurationError: one adapter is reached twice, so that it would have two marks.
    """
    found = [leaf for leaf in _targets(place, WriteTarget("", "", tables)) if not tables or leaf.tables]
    names = [leaf.name for leaf in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(
            f"the adapter {twice!r} would be written twice: name it once, or declare a second adapter"
        )
    return found


def single_backends(place: Backend) -> list[SingleBackend]:
    """Return every adapter of a backend, each once."""
    match place:
        case SingleBackend():
            found = [place]
        case ReplicatedBackend():
            found = [each for inner in (place.primary, *place.secondaries) for each in single_backends(inner)]
        case TieredBackend():
            found = [*single_backends(place.hot), *single_backends(place.cold)]
        case RoutedBackend():
            found = [each for inner in (*place.tables.values(), place.default) for each in single_backends(inner)]
    return list({each.name: each for each in found}.values())


def open_backend(place: Backend) -> DatabaseAdapter:
    """Open a backend as one adapter; of a replicated one, the primary.

    Raises:
        ConfigurationError: no adapter has the scheme, or its package cannot be loaded.
        AdapterError: a backend cannot be opened.
    """
    with ExitStack() as opening:
        opened: dict[str, DatabaseAdapter] = {}

        def open_once(backend: SingleBackend) -> DatabaseAdapter:
            if backend.name not in opened:
                opened[backend.name] = as_database(open_adapter(backend.uri))
                opening.callback(opened[backend.name].close)
            return opened[backend.name]

        adapter = _open(place, open_once)
        opening.pop_all()
        return adapter


def _open(place: Backend, open_once: Callable[[SingleBackend], DatabaseAdapter]) -> DatabaseAdapter:
    match place:
        case SingleBackend():
            return open_once(place)
        case ReplicatedBackend():
            return _open(place.primary, open_once)
        case TieredBackend():
            return LifecycleAdapter(_open(place.hot, open_once), _open(place.cold, open_once), place.max_age_ms)
        case RoutedBackend():
            routes = [Route(frozenset({table}), _open(inner, open_once)) for table, inner in place.tables.items()]
            return CompositeAdapter(routes, _open(place.default, open_once))


def _targets(place: Backend, above: WriteTarget) -> Iterator[WriteTarget]:
    match place:
        case SingleBackend():
            yield msgspec.structs.replace(above, name=place.name, uri=place.uri)
        case ReplicatedBackend():
            for inner in (place.primary, *place.secondaries):
                yield from _targets(inner, above)
        case TieredBackend():
            yield from _targets(place.hot, msgspec.structs.replace(above, cold=(*above.cold, place.cold)))
        case RoutedBackend():
            yield from _routed_targets(place, above)


def _routed_targets(place: RoutedBackend, above: WriteTarget) -> Iterator[WriteTarget]:
    by_place: dict[bytes, tuple[Backend, list[str]]] = {}
    for table, inner in place.tables.items():
        if table not in above.without and (not above.tables or table in above.tables):
            by_place.setdefault(msgspec.json.encode(inner), (inner, []))[1].append(table)
    for inner, tables in by_place.values():
        yield from _targets(inner, msgspec.structs.replace(above, tables=tuple(sorted(tables)), without=()))
    left = tuple(table for table in above.tables if table not in place.tables)
    if left or not above.tables:
        without = () if left else tuple(sorted({*above.without, *place.tables}))
        yield from _targets(place.default, msgspec.structs.replace(above, tables=left, without=without))


def _lake_uri(config: Config) -> str:
    """Return the URI with which pyiceberg opens the lake."""
    lake = config.lake
    kind = "rest" if lake.catalog_uri.startswith("http") else "sql"
    uri = lake.catalog_uri.replace("postgresql://", "postgresql+psycopg://", 1) if kind == "sql" else lake.catalog_uri
    options = {"catalogue": lake.catalog, "type": kind, "uri": uri, "warehouse": lake.warehouse}
    if kind == "sql":
        options["init_catalog_tables"] = "false"  # Spark made them
    return f"iceberg://{lake.system_namespace}?{urlencode(options)}"
