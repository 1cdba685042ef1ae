"""The places that `lakesync.toml` declares: as values that travel to another process, and opened as adapters there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from lakesync.adapters.base import DatabaseAdapter
from lakesync.adapters.composite import CompositeAdapter, Route
from lakesync.adapters.lifecycle import LifecycleAdapter
from lakesync.adapters.registry import as_database, open_adapter
from lakesync.config.backends import LAKE
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    from lakesync.config import Config

DAY_MS = 86_400_000


class Backend(msgspec.Struct, frozen=True, tag=True):
    """One adapter."""

    name: str
    uri: str


class Routed(msgspec.Struct, frozen=True, tag=True):
    """Tables at different places."""

    tables: dict[str, Place]
    default: Place


class Copied(msgspec.Struct, frozen=True, tag=True):
    """One place and those that follow it."""

    primary: Place
    secondaries: tuple[Place, ...]


class Tiered(msgspec.Struct, frozen=True, tag=True):
    """A place for what is young and one for what is old."""

    hot: Place
    cold: Place
    max_age_ms: int


Place = Backend | Routed | Copied | Tiered


class Leaf(msgspec.Struct, frozen=True):
    """A single adapter of a place, and what of the whole belongs there."""

    name: str
    uri: str
    tables: tuple[str, ...] = ()
    """These alone; empty: every table."""
    without: tuple[str, ...] = ()
    """But for these."""
    cold: tuple[Place, ...] = ()
    """Where older deltas of its rows may be."""


def place_of(config: Config, name: str) -> Place:
    """What a declared name stands for; `lake` is the lake's own history, for reading.

    Raises:
        ConfigurationError: nothing is declared by that name.
    """
    if name == LAKE:
        return Backend(LAKE, _lake_uri(config))
    if name in config.adapters:
        return Backend(name, config.adapters[name])
    if name in config.routes:
        routes = config.routes[name]
        tables = {table: place_of(config, inner) for table, inner in routes.tables.items()}
        return Routed(tables, place_of(config, routes.default))
    if name in config.copies:
        copies = config.copies[name]
        followers = tuple(place_of(config, inner) for inner in copies.secondaries)
        return Copied(place_of(config, copies.primary), followers)
    if name in config.tiers:
        tiers = config.tiers[name]
        age = round(tiers.max_age_days * DAY_MS)
        return Tiered(place_of(config, tiers.hot), place_of(config, tiers.cold), age)
    raise ConfigurationError(f"no place {name!r} is declared: add it to [adapters], [routes], [copies] or [tiers]")


def leaves(place: Place, tables: tuple[str, ...] = ()) -> list[Leaf]:
    """The adapters that a place writes to: routes, the primary and each secondary, the hot tier alone.

    Args:
        place: of several or of one.
        tables: these alone; empty: every table.

    Raises:
        ConfigurationError: one adapter is reached in two ways, so that nobody could tell how far it is.
    """
    found = [leaf for leaf in _leaves(place, Leaf("", "", tables)) if not tables or leaf.tables]
    names = [leaf.name for leaf in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(
            f"the adapter {twice!r} is reached in two ways: lead to it once, or declare a second adapter"
        )
    return found


def backends_of(place: Place) -> list[Backend]:
    """Every adapter of a place, each once."""
    match place:
        case Backend():
            found = [place]
        case Copied():
            found = [each for inner in (place.primary, *place.secondaries) for each in backends_of(inner)]
        case Tiered():
            found = [*backends_of(place.hot), *backends_of(place.cold)]
        case Routed():
            found = [each for inner in (*place.tables.values(), place.default) for each in backends_of(inner)]
    return list({each.name: each for each in found}.values())


def open_place(place: Place) -> DatabaseAdapter:
    """A place as one adapter; of copies, the primary.

    Raises:
        ConfigurationError: no adapter has the scheme, or the package that brings it cannot be loaded.
        AdapterError: a backend cannot be opened.
    """
    with ExitStack() as opening:
        opened: dict[str, DatabaseAdapter] = {}

        def once(backend: Backend) -> DatabaseAdapter:
            if backend.name not in opened:
                opened[backend.name] = as_database(open_adapter(backend.uri))
                opening.callback(opened[backend.name].close)
            return opened[backend.name]

        adapter = _opened(place, once)
        opening.pop_all()
        return adapter


def _opened(place: Place, once: Callable[[Backend], DatabaseAdapter]) -> DatabaseAdapter:
    match place:
        case Backend():
            return once(place)
        case Copied():
            return _opened(place.primary, once)
        case Tiered():
            return LifecycleAdapter(_opened(place.hot, once), _opened(place.cold, once), place.max_age_ms)
        case Routed():
            routes = [Route(frozenset({table}), _opened(inner, once)) for table, inner in place.tables.items()]
            return CompositeAdapter(routes, _opened(place.default, once))


def _leaves(place: Place, above: Leaf) -> Iterator[Leaf]:
    match place:
        case Backend():
            yield msgspec.structs.replace(above, name=place.name, uri=place.uri)
        case Copied():
            for inner in (place.primary, *place.secondaries):
                yield from _leaves(inner, above)
        case Tiered():
            yield from _leaves(place.hot, msgspec.structs.replace(above, cold=(*above.cold, place.cold)))
        case Routed():
            yield from _routed(place, above)


def _routed(place: Routed, above: Leaf) -> Iterator[Leaf]:
    by_place: dict[bytes, tuple[Place, list[str]]] = {}
    for table, inner in place.tables.items():
        if table not in above.without and (not above.tables or table in above.tables):
            by_place.setdefault(msgspec.json.encode(inner), (inner, []))[1].append(table)
    for inner, tables in by_place.values():
        yield from _leaves(inner, msgspec.structs.replace(above, tables=tuple(sorted(tables)), without=()))
    left = tuple(table for table in above.tables if table not in place.tables)
    if left or not above.tables:
        without = () if left else tuple(sorted({*above.without, *place.tables}))
        yield from _leaves(place.default, msgspec.structs.replace(above, tables=left, without=without))


def _lake_uri(config: Config) -> str:
    """The lake as pyiceberg opens it."""
    lake = config.lake
    kind = "rest" if lake.catalog_uri.startswith("http") else "sql"
    uri = lake.catalog_uri.replace("postgresql://", "postgresql+psycopg://", 1) if kind == "sql" else lake.catalog_uri
    options = {"catalogue": lake.catalog, "type": kind, "uri": uri, "warehouse": lake.warehouse}
    if kind == "sql":
        options["init_catalog_tables"] = "false"  # Spark made them
    return f"iceberg://{lake.system_namespace}?{urlencode(options)}"
