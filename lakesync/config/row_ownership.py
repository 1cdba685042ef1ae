"""Rejects configurations in which two movers would keep the same table of rows in different ways.

A destination or flow with `rows = true` keeps a table of current rows at each of its adapters. A destination shows
every row, a flow only the rows that meet its filter, and with a hot tier the deltas of the cold tier count too. If two
movers kept one table at one adapter but saw different rows, each would delete rows that the other inserted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from lakesync.config.backends import LAKE, Backends, Condition, DeclaredDestination, DeclaredFlow

_OBJECT_STORES = ("file://", "s3://")
"""These keep deltas only, no tables of rows."""


class _RowTables(NamedTuple):
    """Tables of rows at an adapter."""

    adapter: str
    tables: frozenset[str] | None
    """None: every table except `excluded`."""
    excluded: frozenset[str]
    cold_tiers: tuple[str, ...]
    """Backends whose deltas count for the rows too."""


class _Mover(NamedTuple):
    """A destination or flow, and the tables of rows that it keeps at one adapter."""

    setting: str
    where: frozenset[Condition]
    rows: _RowTables

    def sees_same_rows(self, other: _Mover) -> bool:
        """Whether both would write the same rows to a table."""
        return self.where == other.where and self.rows.cold_tiers == other.rows.cold_tiers


def check_row_ownership(backends: Backends) -> None:
    """Check that all movers that keep one table of rows at one adapter see the same rows.

    Args:
        backends: sections that `check_backends` has accepted.

    Raises:
        ValueError: two movers differ; the message names both, the table, the adapter and the remedy.
    """
    for one, other in combinations(_movers(backends), 2):
        if one.setting == other.setting or one.sees_same_rows(other) or not _share_adapter(backends, one, other):
            continue
        if (table := _shared_table(one.rows, other.rows)) is not None:
            adapter = " and ".join(repr(name) for name in sorted({one.rows.adapter, other.rows.adapter}))
            raise ValueError(
                f"{one.setting} and {other.setting} both keep {table} at the adapter {adapter}, and would each delete "
                "rows that the other inserts; set rows = false for one of them, or use another adapter"
            )


def _movers(backends: Backends) -> Iterator[_Mover]:
    movers: dict[str, DeclaredDestination | DeclaredFlow] = {
        **{f"destinations.{name}": each for name, each in backends.destinations.items()},
        **{f"flows.{name}": each for name, each in backends.flows.items() if each.to != LAKE},
    }
    for setting, declared in movers.items():
        if not declared.rows:
            continue
        where = declared.where if isinstance(declared, DeclaredFlow) else ()
        tables = frozenset(declared.tables) or None
        for rows in _row_tables(backends, _RowTables(declared.to, tables, frozenset(), ())):
            if not backends.adapters[rows.adapter].startswith(_OBJECT_STORES):
                yield _Mover(setting, frozenset(where), rows)


def _row_tables(backends: Backends, at: _RowTables) -> Iterator[_RowTables]:
    """Divide the tables that a backend keeps among the adapters that it is composed of."""
    name = at.adapter
    if name in backends.adapters:
        yield at
    elif name in backends.fan_out:
        for part in (backends.fan_out[name].primary, *backends.fan_out[name].secondaries):
            yield from _row_tables(backends, at._replace(adapter=part))
    elif name in backends.tiers:
        tiers = backends.tiers[name]
        yield from _row_tables(backends, at._replace(adapter=tiers.hot, cold_tiers=(*at.cold_tiers, tiers.cold)))
    else:
        routes = backends.routes[name]
        for table, part in routes.tables.items():
            if table not in at.excluded and (at.tables is None or table in at.tables):
                one = at._replace(adapter=part, tables=frozenset({table}), excluded=frozenset())
                yield from _row_tables(backends, one)
        routed = frozenset(routes.tables)
        others = None if at.tables is None else at.tables - routed
        if others is None or others:
            rest = at._replace(adapter=routes.default, tables=others, excluded=at.excluded | routed)
            yield from _row_tables(backends, rest)


def _share_adapter(backends: Backends, one: _Mover, other: _Mover) -> bool:
    """Whether both write to the same backend, which two adapters with the same URI are."""
    return backends.adapters[one.rows.adapter] == backends.adapters[other.rows.adapter]


def _shared_table(one: _RowTables, other: _RowTables) -> str | None:
    """Return a table that both keep, as part of a sentence; None if they share none."""
    if one.tables is None:
        one, other = other, one
    if one.tables is None:
        return "every table"
    both = one.tables - other.excluded if other.tables is None else one.tables & other.tables
    return f"the table {min(both)!r}" if both else None
