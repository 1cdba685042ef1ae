"""Rejects configurations in which two movers would write different rows to the same destination table.

A mover is a destination or flow. With `rows = true` it maintains tables of current rows at each of its adapters. A
destination writes every row, a flow only the rows that satisfy its filter, and with a hot tier the deltas of the cold
tier are merged too. If two movers maintained one table at one adapter with different rows, each would delete rows that
the other inserted. `Config` calls this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from lakesync.config.backends import LAKE, Backends, Condition, DeclaredDestination, DeclaredFlow

_OBJECT_STORES = ("file://", "s3://")
"""URI schemes of adapters that store only deltas, and no tables of rows."""


class _RowTables(NamedTuple):
    """The destination tables that a mover maintains at an adapter, or at a backend that is still to be divided."""

    adapter: str
    """The name of the adapter, or of the backend."""
    tables: frozenset[str] | None
    """None for every table except `excluded`."""
    excluded: frozenset[str]
    cold_tiers: tuple[str, ...]
    """Backends whose deltas are merged into the rows too."""


class _Mover(NamedTuple):
    """A destination or flow, and the destination tables that it maintains at one adapter."""

    setting: str
    """Its name, such as `flows.NAME`."""
    where: frozenset[Condition]
    """A flow's filter; empty for a destination."""
    rows: _RowTables

    def writes_same_rows(self, other: _Mover) -> bool:
        """Return whether both would write the same rows to a table."""
        return self.where == other.where and self.rows.cold_tiers == other.rows.cold_tiers


def check_row_ownership(backends: Backends) -> None:
    """Check that all movers that maintain one destination table at one adapter write the same rows to it.

    Args:
        backends: sections that `check_backends` has accepted.

    Raises:
        ValueError: two movers differ; the message names both, the table, the adapter and the remedy.
    """
    for first, second in combinations(_movers(backends), 2):
        if (
            first.setting == second.setting
            or first.writes_same_rows(second)
            or not _share_adapter(backends, first, second)
        ):
            continue
        if (table := _shared_table(first.rows, second.rows)) is not None:
            adapter = " and ".join(repr(name) for name in sorted({first.rows.adapter, second.rows.adapter}))
            raise ValueError(
                f"{first.setting} and {second.setting} both keep {table} at the adapter {adapter}, and would each "
                "delete rows that the other inserts; set rows = false for one of them, or use another adapter"
            )


def _movers(backends: Backends) -> Iterator[_Mover]:
    """Yield each mover with `rows = true`, once for each of its adapters that has tables of rows."""
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


def _row_tables(backends: Backends, undivided: _RowTables) -> Iterator[_RowTables]:
    """Yield the destination tables of a backend, divided among the adapters that it is composed of."""
    name = undivided.adapter
    if name in backends.adapters:
        yield undivided
    elif name in backends.fan_out:
        for part in (backends.fan_out[name].primary, *backends.fan_out[name].secondaries):
            yield from _row_tables(backends, undivided._replace(adapter=part))
    elif name in backends.tiers:
        tiers = backends.tiers[name]
        yield from _row_tables(
            backends, undivided._replace(adapter=tiers.hot, cold_tiers=(*undivided.cold_tiers, tiers.cold))
        )
    else:
        routes = backends.routes[name]
        for table, part in routes.tables.items():
            if table not in undivided.excluded and (undivided.tables is None or table in undivided.tables):
                one = undivided._replace(adapter=part, tables=frozenset({table}), excluded=frozenset())
                yield from _row_tables(backends, one)
        routed = frozenset(routes.tables)
        others = None if undivided.tables is None else undivided.tables - routed
        if others is None or others:
            rest = undivided._replace(adapter=routes.default, tables=others, excluded=undivided.excluded | routed)
            yield from _row_tables(backends, rest)


def _share_adapter(backends: Backends, first: _Mover, second: _Mover) -> bool:
    """Return whether both write to the same adapter, or to two adapters with the same URI."""
    return backends.adapters[first.rows.adapter] == backends.adapters[second.rows.adapter]


def _shared_table(first: _RowTables, second: _RowTables) -> str | None:
    """Return a table that both maintain, as part of a sentence; None if they share none."""
    if first.tables is None:
        first, second = second, first
    if first.tables is None:
        return "every table"
    shared = first.tables - second.excluded if second.tables is None else first.tables & second.tables
    return f"the table {min(shared)!r}" if shared else None
