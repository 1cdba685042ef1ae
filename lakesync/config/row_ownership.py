"""The check that writers of the same destination table write the same rows; `Config` calls it when settings are read.

A *backend* is an adapter (one database or object store), or is composed of other backends. A *destination* copies all
changes of rows from the lake to a backend, a *flow* those that satisfy its filter. Both also maintain *destination
tables* there, tables with the current rows. *Tiers* are a hot and a cold adapter: old changes move from one to the
other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from lakesync.config.backends import LAKE, Backends, Condition, DeclaredDestination, DeclaredFlow

_OBJECT_STORES = ("file://", "s3://")
"""URI schemes of adapters that store only changes of rows, and no destination tables."""


def check_row_ownership(backends: Backends) -> None:
    """Check that all writers that maintain one destination table at one adapter write the same rows to it.

    A writer is a destination or flow with `rows = true`. If two of them maintained one table at one adapter with
    different rows, each would delete rows that the other inserted. Two things decide which rows a writer writes: its
    filter, and the cold tiers whose hot tier the adapter is, because it also merges the old changes that are there.

    Likewise, a writer to a hot tier must also know its cold tier.

    Args:
        backends: sections that `check_backends` has accepted.

    Raises:
        ValueError: a check failed; the message names the writers, the adapter and the remedy.
    """
    writers = list(_row_writers(backends))
    for first, second in combinations(writers, 2):
        if first.setting == second.setting or first.writes_same_rows(second):
            continue
        # two adapters may have the same URI
        if backends.adapters[first.rows.adapter] != backends.adapters[second.rows.adapter]:
            continue
        table = _shared_table(first.rows, second.rows)
        if table is not None:
            adapter = " and ".join(repr(name) for name in sorted({first.rows.adapter, second.rows.adapter}))
            raise ValueError(
                f"{first.setting} and {second.setting} both keep {table} at the adapter {adapter}, and would each "
                "delete rows that the other inserts; set rows = false for one of them, or use another adapter"
            )
    for writer in writers:
        for name, tiers in backends.tiers.items():
            is_hot = backends.adapters[writer.rows.adapter] in backends.read_uris(tiers.hot)
            if is_hot and tiers.cold not in writer.rows.cold_tiers:
                raise ValueError(
                    f"{writer.setting} keeps tables of rows at the adapter {writer.rows.adapter!r}, the hot tier of "
                    f"{name!r}, without the old changes that move to {tiers.cold!r}; write to {name!r}, or set "
                    "rows = false"
                )


class _RowTables(NamedTuple):
    """The destination tables that a writer maintains at an adapter.

    While `_row_tables` divides a backend into its adapters, the adapter may also be a backend composed of others.
    """

    adapter: str
    """The name of the adapter, or of the backend."""
    tables: frozenset[str] | None
    """None for every table except `excluded`."""
    excluded: frozenset[str]
    """Tables that are routed to another backend."""
    cold_tiers: tuple[str, ...]
    """Cold tiers of which the adapter is the hot tier: their old changes are merged into the rows too."""


class _RowWriter(NamedTuple):
    """A destination or flow, and the destination tables that it maintains at one adapter."""

    setting: str
    """Its name, such as `flows.NAME`."""
    where: frozenset[Condition]
    """A flow's filter; empty for a destination."""
    rows: _RowTables
    """The tables, and the adapter."""

    def writes_same_rows(self, other: _RowWriter) -> bool:
        """Return whether both would write the same rows to a table."""
        return self.where == other.where and self.rows.cold_tiers == other.rows.cold_tiers


def _row_writers(backends: Backends) -> Iterator[_RowWriter]:
    """Yield each writer with `rows = true`, once for each of its adapters that has tables of rows."""
    writers: dict[str, DeclaredDestination | DeclaredFlow] = {
        **{f"destinations.{name}": each for name, each in backends.destinations.items()},
        **{f"flows.{name}": each for name, each in backends.flows.items() if each.to != LAKE},
    }
    for setting, declared in writers.items():
        if not declared.rows:
            continue
        where = declared.where if isinstance(declared, DeclaredFlow) else ()
        tables = frozenset(declared.tables) or None  # without names, all tables
        for rows in _row_tables(backends, _RowTables(declared.to, tables, frozenset(), ())):
            if not backends.adapters[rows.adapter].startswith(_OBJECT_STORES):
                yield _RowWriter(setting, frozenset(where), rows)


def _row_tables(backends: Backends, undivided: _RowTables) -> Iterator[_RowTables]:
    """Yield the destination tables of a backend, divided among the adapters that it is composed of.

    A fan-out has each table in all of its parts, tiers have it in the hot part, and routes in one part.

    Args:
        backends: all declared backends.
        undivided: the tables at the backend.
    """
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


def _shared_table(first: _RowTables, second: _RowTables) -> str | None:
    """Return a table that both maintain, as part of a sentence; None if they share none."""
    if first.tables is None:
        first, second = second, first
    if first.tables is None:  # both maintain every table
        return "every table"
    shared = first.tables - second.excluded if second.tables is None else first.tables & second.tables
    return f"the table {min(shared)!r}" if shared else None
