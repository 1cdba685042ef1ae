"""The sections of `lakesync.toml` that declare backends, combine them and transfer data between them.

A backend stores *deltas* (changes of rows): it is an adapter, which is one database or object store, or it is composed
of other backends. A *mark* is the position up to which a backend has received deltas. A *gateway* is one app's stream
of changes. A gateway's *sync rules* are conditions on rows, which decide what each client may see.

`[adapters]`, `[routes]`, `[fan_out]` and `[tiers]` declare backends. `[destinations]`, `[flows]`, `[migrations]` and
`[sources]` refer to them by name. The name `lake` means the table of all deltas in the lake (Iceberg): flows,
migrations and sources may read it, and a flow may write to it. `Config` contains the sections; `check_backends`
(backend_checks.py) compares several of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from lakesync.config.sections import Section
from lakesync.model.types import Operator
from lakesync.model.validation import GATEWAY_ID, check_gateway_id

BackendName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
"""Name of a backend, or of a destination, flow or migration. It is also part of the name of a Dagster asset."""
TableName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")]
"""Name of a table or column."""
GatewayId = Annotated[str, Field(pattern=f"^{GATEWAY_ID}$")]
"""Id of a gateway."""
LAKE = "lake"
"""The reserved name of the lake's own history."""


class DeclaredRoutes(Section):
    """`[routes.NAME]`: a backend that keeps each table in one of several backends."""

    tables: dict[TableName, str]
    """Table → backend."""
    default: str
    """Backend of every other table."""


class DeclaredFanOut(Section):
    """`[fan_out.NAME]`: a primary backend and secondaries that each follow the same deltas with their own mark."""

    primary: str
    """Backend that is read."""
    secondaries: Annotated[tuple[str, ...], Field(min_length=1)]
    """Backends that receive the same deltas."""


class DeclaredTiers(Section):
    """`[tiers.NAME]`: a hot backend for recent deltas and a cold one for old deltas."""

    hot: str
    """Backend for recent deltas: a database."""
    cold: str
    """Backend for old deltas."""
    max_age_days: PositiveFloat
    """Age in days, by a delta's hlc (its client's timestamp), from which it moves to the cold tier. A scheduled run
    moves whole UTC days: those that ended so long ago."""
    schedule: str = "20 2 * * *"
    """Cron schedule (UTC) of the transfer."""


class DeclaredDestination(Section):
    """`[destinations.NAME]`: a backend that follows the lake's `deltas`. Each of its adapters has its own mark."""

    to: str
    """Backend that receives the deltas."""
    tables: tuple[TableName, ...] = ()
    """Tables to follow; empty: all."""
    gateways: tuple[GatewayId, ...] = ()
    """Gateways to follow; empty: all."""
    rows: bool = True
    """Keep a table of current rows beside the deltas, in databases and for tables with a schema."""


class Condition(Section):
    """`{column, op, value}`: a condition on a row's state, as in sync rules."""

    column: TableName
    """Column of the row."""
    op: Operator
    """Operator of sync rules."""
    value: str
    """Value to compare with."""


class DeclaredFlow(Section):
    """`[flows.NAME]`: an incremental copy from one backend to another, with a filter on rows."""

    model_config = ConfigDict(populate_by_name=True)

    source: str = Field(alias="from")
    """Backend to read, or `lake`."""
    to: str
    """Backend to write, or `lake`."""
    tables: tuple[TableName, ...] = ()
    """Tables to copy; empty: all."""
    gateways: tuple[GatewayId, ...] = ()
    """Gateways to copy; empty: all."""
    where: tuple[Condition, ...] = ()
    """Conditions that a row must meet, all of them. A row that stops meeting them is deleted from the table of rows."""
    rows: bool = True
    """Keep a table of current rows beside the deltas."""
    into: GatewayId | None = None
    """Gateway that the deltas are pushed to, with `to = "lake"`; unset: the gateway of each delta."""
    schedule: str = "*/5 * * * *"
    """Cron schedule (UTC)."""


class DeclaredMigration(Section):
    """`[migrations.NAME]`: a verified copy of whole tables from one backend to another, by day and table."""

    model_config = ConfigDict(populate_by_name=True)

    source: str = Field(alias="from")
    """Backend to read, or `lake`."""
    to: str
    """Backend to write."""
    tables: Annotated[tuple[TableName, ...], Field(min_length=1)]
    """Tables to copy."""
    gateway: GatewayId | None = None
    """Gateway to copy; unset: all."""
    since: date
    """First day to copy (UTC, by hlc)."""
    until: date | None = None
    """Last day to copy; unset: today."""
    page_size: PositiveInt = 10_000
    """Deltas per page."""
    schedule: str | None = None
    """Cron schedule (UTC) on which days that have ended are copied; unset: on request."""


def _check_one_gateway(value: object) -> object:
    """Return a value that is the id of one gateway, or None; raise ValueError for another."""
    remedy = "name one gateway, or leave `gateway` out for each gateway's own deltas"
    if isinstance(value, str):
        if check_gateway_id(value) is not None:
            raise ValueError(f"an id has 1 to 64 letters, digits, - and _; {remedy}")
    elif value is not None:
        raise ValueError(f"a source has the deltas of one gateway, not of {value!r}; {remedy}")
    return value


class DeclaredSource(Section):
    """`[sources.NAME]`: a backend from which clients may pull with `source=NAME`, through the rules of their gateway.

    A backend may have the deltas of several gateways. A client gets only those of its own gateway, or, with `gateway`,
    those of one gateway that all gateways share. Without `gateway`, `NAME = "URI"` in `[sources]` is enough.
    To change `uri` or `gateway`, declare the source under a new name, because each client keeps its position by name.
    """

    uri: str
    """Adapter URI, name of a backend, or `lake`. A URI with credentials is written as a reference to a
    variable or secret, such as `env:NAME`."""
    gateway: Annotated[str | None, BeforeValidator(_check_one_gateway)] = None
    """Gateway whose deltas the clients of every gateway may pull, such as a reference data set; unset: each gateway's
    own."""

    @model_validator(mode="before")
    @classmethod
    def _accept_uri(cls, value: object) -> object:
        """Accept a URI alone."""
        match value:
            case str():
                return {"uri": value}
            case Mapping() | DeclaredSource():
                return value
        raise ValueError('a source is a URI or a table; write "URI", or { uri = "URI", gateway = "ID" }')


class Target(NamedTuple):
    """One adapter that a backend writes to, and which tables it receives."""

    name: str
    """The adapter's name; the backend's own until `Backends.targets` has divided it into its adapters."""
    tables: tuple[str, ...] = ()
    """Only these tables; empty means every table."""
    without: tuple[str, ...] = ()
    """Except these tables."""
    cold: tuple[str, ...] = ()
    """Names of cold tiers of which the adapter is the hot tier: they may have older deltas of the same rows."""

    def has_table(self, table: str) -> bool:
        """Return whether the adapter receives a table."""
        return table not in self.without and (not self.tables or table in self.tables)


class Backends(NamedTuple):
    """The sections about backends, for the checks across them. Each maps a declared name to its settings."""

    adapters: Mapping[str, str]
    """The URI of each adapter."""
    routes: Mapping[str, DeclaredRoutes]
    fan_out: Mapping[str, DeclaredFanOut]
    tiers: Mapping[str, DeclaredTiers]
    sources: Mapping[str, DeclaredSource]
    destinations: Mapping[str, DeclaredDestination]
    flows: Mapping[str, DeclaredFlow]
    migrations: Mapping[str, DeclaredMigration]

    def parts(self, name: str) -> list[tuple[str, str]]:
        """Return the backends that a backend is composed of directly, as `(setting that names the part, part's name)`.

        An adapter has no parts.
        """
        if name in self.routes:
            routes = self.routes[name]
            by_table = [(f"routes.{name}.tables.{table}", part) for table, part in routes.tables.items()]
            return [*by_table, (f"routes.{name}.default", routes.default)]
        if name in self.fan_out:
            fan_out = self.fan_out[name]
            secondaries = [(f"fan_out.{name}.secondaries", part) for part in fan_out.secondaries]
            return [(f"fan_out.{name}.primary", fan_out.primary), *secondaries]
        if name in self.tiers:
            tiers = self.tiers[name]
            return [(f"tiers.{name}.hot", tiers.hot), (f"tiers.{name}.cold", tiers.cold)]
        return []

    def contents_of(self, name: str) -> set[str]:
        """Return the names of a backend and of all backends that it is composed of, directly or indirectly."""
        return {name}.union(*(self.contents_of(part) for _, part in self.parts(name)))

    def adapters_of(self, name: str) -> set[str]:
        """Return the names of the adapters that a backend is composed of, directly or through other backends."""
        parts = self.parts(name)
        return {adapter for _, part in parts for adapter in self.adapters_of(part)} if parts else {name}

    def read_uris(self, name: str) -> set[str]:
        """Return the URIs of the adapters from which a backend is read; of a fan-out, only those of its primary."""
        if name in self.fan_out:
            return self.read_uris(self.fan_out[name].primary)
        parts = self.parts(name)
        return {uri for _, part in parts for uri in self.read_uris(part)} if parts else {self.adapters[name]}

    def adapters_of_table(self, name: str, table: str | None) -> set[str]:
        """Return the names of the adapters of a backend that keep a table.

        Args:
            name: the backend, or `lake`.
            table: the table; None for a table that no route names.
        """
        if name in self.routes:
            routes = self.routes[name]
            parts = [routes.default if table is None else routes.tables.get(table, routes.default)]
        else:
            parts = [part for _, part in self.parts(name)]
        return {adapter for part in parts for adapter in self.adapters_of_table(part, table)} if parts else {name}

    def targets(self, backend: Target) -> Iterator[Target]:
        """Yield the adapters that a backend writes to. They include secondaries, but not cold tiers, which tiers fill.

        Args:
            backend: the backend, with the tables to write and the cold tiers of which it is a part.
        """
        if backend.name in self.routes:
            yield from self._routed_targets(backend, self.routes[backend.name])
        elif backend.name in self.fan_out:
            for _, part in self.parts(backend.name):
                yield from self.targets(backend._replace(name=part))
        elif backend.name in self.tiers:
            tiers = self.tiers[backend.name]
            yield from self.targets(backend._replace(name=tiers.hot, cold=(*backend.cold, tiers.cold)))
        else:
            yield backend

    def _routed_targets(self, backend: Target, routes: DeclaredRoutes) -> Iterator[Target]:
        """Yield the adapters of routes: those of each part with its tables, those of the default with all others."""
        # Parts that write to the same adapters share a target, also under several names.
        adapters = {part: tuple(self.targets(Target(part))) for part in (*routes.tables.values(), routes.default)}
        routed = {table: part for table, part in routes.tables.items() if adapters[part] != adapters[routes.default]}
        tables_by_adapters: dict[tuple[Target, ...], list[str]] = {}
        for table, part in routed.items():
            if backend.has_table(table):
                tables_by_adapters.setdefault(adapters[part], []).append(table)
        for tables in tables_by_adapters.values():
            yield from self.targets(backend._replace(name=routed[tables[0]], tables=tuple(sorted(tables)), without=()))
        others = tuple(table for table in backend.tables if table not in routed)
        if others or not backend.tables:
            without = () if others else tuple(sorted({*backend.without, *routed}))
            yield from self.targets(backend._replace(name=routes.default, tables=others, without=without))
