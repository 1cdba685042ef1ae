"""Tables of rows that two would keep in different ways: refused when the configuration is read.

A destination shows every row, a flow those that meet its filter, and of a hot tier's rows both count what is in the
cold one. Of two that keep one table at one adapter, each makes a row's row again as it sees it: where they do not see
alike, what one shows the other hides.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from lakesync.config.backends import LAKE, Condition, DeclaredDestination, DeclaredFlow

if TYPE_CHECKING:
    from lakesync.config import Config

_NO_ROWS = ("file://", "s3://")
"""Object stores keep deltas alone."""


class _Kept(NamedTuple):
    """The tables of rows that something keeps at an adapter."""

    adapter: str
    tables: frozenset[str] | None
    """None: every table."""
    without: frozenset[str]
    """But for these."""
    cold: tuple[str, ...]
    """The places whose deltas count too."""


class _Keeper(NamedTuple):
    setting: str
    where: frozenset[Condition]
    kept: _Kept

    def shows_as(self, other: _Keeper) -> bool:
        """Whether a row's row is the same, whoever of the two makes it."""
        return self.where == other.where and self.kept.cold == other.kept.cold


def check_rows(config: Config) -> None:
    """Whoever keeps a table of rows at an adapter shows the same of it as all others who do.

    Every name that is used is declared, as `check_places` has found.

    Raises:
        ValueError: two do not; it names both, the adapter, the table and what to do.
    """
    for one, other in combinations(_keepers(config), 2):
        if one.setting == other.setting or one.shows_as(other) or not _same_backend(config, one, other):
            continue
        if (shared := _shared(one.kept, other.kept)) is not None:
            adapter = " and ".join(repr(name) for name in sorted({one.kept.adapter, other.kept.adapter}))
            raise ValueError(
                f"{one.setting} and {other.setting} both keep {shared} at the adapter {adapter}, and would each hide "
                "rows that the other shows: say rows = false for one of them, or lead it to another adapter"
            )


def _keepers(config: Config) -> Iterator[_Keeper]:
    movers: dict[str, DeclaredDestination | DeclaredFlow] = {
        **{f"destinations.{name}": each for name, each in config.destinations.items()},
        **{f"flows.{name}": each for name, each in config.flows.items() if each.to != LAKE},
    }
    for setting, declared in movers.items():
        if not declared.rows:
            continue
        where = declared.where if isinstance(declared, DeclaredFlow) else ()
        tables = frozenset(declared.tables) or None
        for kept in _kept(config, _Kept(declared.to, tables, frozenset(), ())):
            if not config.adapters[kept.adapter].startswith(_NO_ROWS):
                yield _Keeper(setting, frozenset(where), kept)


def _kept(config: Config, at: _Kept) -> Iterator[_Kept]:
    """What of a place's tables each of its adapters keeps."""
    name = at.adapter
    if name in config.adapters:
        yield at
    elif name in config.copies:
        for inner in (config.copies[name].primary, *config.copies[name].secondaries):
            yield from _kept(config, at._replace(adapter=inner))
    elif name in config.tiers:
        tiers = config.tiers[name]
        yield from _kept(config, at._replace(adapter=tiers.hot, cold=(*at.cold, tiers.cold)))
    else:
        routes = config.routes[name]
        for table, inner in routes.tables.items():
            if table not in at.without and (at.tables is None or table in at.tables):
                yield from _kept(config, at._replace(adapter=inner, tables=frozenset({table}), without=frozenset()))
        routed = frozenset(routes.tables)
        rest = None if at.tables is None else at.tables - routed
        if rest is None or rest:
            yield from _kept(config, at._replace(adapter=routes.default, tables=rest, without=at.without | routed))


def _same_backend(config: Config, one: _Keeper, other: _Keeper) -> bool:
    """Whether two adapters are one, by whatever names."""
    return config.adapters[one.kept.adapter] == config.adapters[other.kept.adapter]


def _shared(one: _Kept, other: _Kept) -> str | None:
    """A table that both keep, in words."""
    if one.tables is None:
        one, other = other, one
    if one.tables is None:
        return "every table"
    both = one.tables - other.without if other.tables is None else one.tables & other.tables
    return f"the table {min(both)!r}" if both else None


__all__ = ["check_rows"]
