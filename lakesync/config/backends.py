"""The sections of `lakesync.toml` that name backends, make one of several, and say what moves between them.

`[adapters]`, `[routes]`, `[copies]` and `[tiers]` declare places; `[destinations]`, `[flows]`, `[migrations]` and
`[sources]` use them by name. `lake` is the lake's own history: it may be read from, and a flow may lead to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from lakesync.model.validation import GATEWAY_ID

if TYPE_CHECKING:
    from lakesync.config import Config

PlaceName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
"""Of a place, or of what moves: it names an asset too."""
Operator = Literal["eq", "neq", "in", "gt", "lt", "gte", "lte"]
"""Those of sync rules."""
TableName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")]
LAKE = "lake"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class DeclaredRoutes(_Section):
    """`[routes.NAME]`: each table at the place named for it, all others at the default."""

    tables: dict[TableName, str]
    """Table → place."""
    default: str


class DeclaredCopies(_Section):
    """`[copies.NAME]`: a place that counts, and others that follow it by themselves."""

    primary: str
    secondaries: Annotated[tuple[str, ...], Field(min_length=1)]


class DeclaredTiers(_Section):
    """`[tiers.NAME]`: what is young in one place, what is old in another."""

    hot: str
    cold: str
    max_age_days: PositiveFloat
    """By a delta's hlc; what is older moves to the cold tier."""
    schedule: str = "20 2 * * *"
    """When it moves, as cron has it, in UTC."""


class DeclaredDestination(_Section):
    """`[destinations.NAME]`: a place that follows the lake's `deltas`, each of its leaves by itself."""

    to: str
    tables: tuple[TableName, ...] = ()
    """Empty: every table."""
    gateways: tuple[str, ...] = ()
    """Empty: every gateway."""
    rows: bool = True
    """Whether databases keep tables of rows beside the deltas, for the tables that have a schema."""


class Condition(_Section):
    """`{column, op, value}`: what must hold of a row's state, as in sync rules."""

    column: TableName
    op: Operator
    value: str


class DeclaredFlow(_Section):
    """`[flows.NAME]`: from one place to another, incremental, with a filter on rows."""

    source: str = Field(alias="from")
    to: str
    tables: tuple[TableName, ...] = ()
    gateways: tuple[str, ...] = ()
    where: tuple[Condition, ...] = ()
    """All of them must hold. A row that ceases to meet them goes from the table of rows."""
    rows: bool = True
    into: Annotated[str, Field(pattern=f"^{GATEWAY_ID}$")] | None = None
    """For `to = "lake"`: the gateway that takes the deltas; unset, the one that each is of."""
    schedule: str = "*/5 * * * *"


class DeclaredMigration(_Section):
    """`[migrations.NAME]`: everything of some tables, from one place to another, by day and table."""

    source: str = Field(alias="from")
    to: str
    tables: Annotated[tuple[TableName, ...], Field(min_length=1)]
    gateway: str | None = None
    since: date
    """The first day (UTC, by hlc)."""
    until: date | None = None
    """The last one; unset, today."""
    at_once: PositiveInt = 10_000
    """Deltas a page."""
    schedule: str | None = None
    """When the days that have ended and were not copied yet are copied, as cron has it, in UTC; unset: on request."""


def check_places(config: Config) -> None:
    """Every name that is used is declared, once, and nothing is made of itself.

    Raises:
        ValueError: something is not so; it says which setting, and what to do.
    """
    declared: dict[str, str] = {}
    for section in ("adapters", "routes", "copies", "tiers"):
        for name in getattr(config, section):
            if name == LAKE:
                raise ValueError(f"{section}.{LAKE} has the lake's own name: choose another")
            if name in declared:
                raise ValueError(f"{section}.{name} has the name of {declared[name]}.{name}: choose another")
            declared[name] = section
    known = ", ".join(sorted(declared)) or "none"
    for setting, name, lake_too in _uses(config):
        if name not in declared and not (lake_too and name == LAKE):
            raise ValueError(
                f"{setting} names {name!r}, which is not declared (declared: {known}): add it to [adapters], [routes], "
                "[copies] or [tiers]"
            )
    for name in declared:
        _check_no_circle(config, name, ())
    _check_leaves(config)
    for name, migration in config.migrations.items():
        if migration.until is not None and migration.until < migration.since:
            raise ValueError(f"migrations.{name}.until, {migration.until}, lies before since, {migration.since}")
    for name, flow in config.flows.items():
        if flow.source == flow.to:
            raise ValueError(f"flows.{name} leads from {flow.to!r} to itself: name two places")


def _check_leaves(config: Config) -> None:
    """No two adapters of destinations are one step to Dagster, which joins their names by two underscores."""
    steps: dict[str, str] = {}
    for name, destination in config.destinations.items():
        for leaf in sorted(_adapters(config, destination.to)):
            told = f"the adapter {leaf!r} of destinations.{name}"
            other = steps.setdefault(f"{name}__{leaf}", told)
            if other != told:
                raise ValueError(
                    f"{told} and {other} would both be called {name}__{leaf} in Dagster: rename one of them without "
                    "two underscores in a row"
                )


def _adapters(config: Config, name: str) -> set[str]:
    """The adapters that a place is made of."""
    parts = _parts(config, name)
    return {leaf for _, inner in parts for leaf in _adapters(config, inner)} if parts else {name}


def _uses(config: Config) -> Iterator[tuple[str, str, bool]]:
    """Each setting that names a place, what it names, and whether that may be the lake."""
    for name in (*config.routes, *config.copies, *config.tiers):
        for setting, inner in _parts(config, name):
            yield setting, inner, False
    for name, destination in config.destinations.items():
        yield f"destinations.{name}.to", destination.to, False
    for name, flow in config.flows.items():
        yield f"flows.{name}.from", flow.source, True
        yield f"flows.{name}.to", flow.to, True
    for name, migration in config.migrations.items():
        yield f"migrations.{name}.from", migration.source, True
        yield f"migrations.{name}.to", migration.to, False
    for name, uri in config.sources.items():
        if ":" not in uri:
            yield f"sources.{name}", uri, True


def _parts(config: Config, name: str) -> list[tuple[str, str]]:
    """The settings of a place that name others, and what they name."""
    routes: Mapping[str, Any] = config.routes
    if name in routes:
        found = [(f"routes.{name}.tables.{table}", place) for table, place in routes[name].tables.items()]
        return [*found, (f"routes.{name}.default", routes[name].default)]
    if name in config.copies:
        copies = config.copies[name]
        found = [(f"copies.{name}.secondaries", place) for place in copies.secondaries]
        return [(f"copies.{name}.primary", copies.primary), *found]
    if name in config.tiers:
        tiers = config.tiers[name]
        return [(f"tiers.{name}.hot", tiers.hot), (f"tiers.{name}.cold", tiers.cold)]
    return []


def _check_no_circle(config: Config, name: str, within: tuple[str, ...]) -> None:
    if name in within:
        raise ValueError(f"the place {name!r} is made of itself: {' → '.join((*within, name))}")
    for _, inner in _parts(config, name):
        _check_no_circle(config, inner, (*within, name))
