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

from lakesync.config.backends import LAKE, Backends, Condition, DeclaredDestination, DeclaredFlow, Target

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
        if backends.adapters[first.rows.name] != backends.adapters[second.rows.name]:
            continue
        table = _shared_table(first.rows, second.rows)
        if table is not None:
            adapter = " and ".join(repr(name) for name in sorted({first.rows.name, second.rows.name}))
            raise ValueError(
                f"{first.setting} and {second.setting} both keep {table} at the adapter {adapter}, and would each "
                "delete rows that the other inserts; set rows = false for one of them, or use another adapter"
            )
    for writer in writers:
        for name, tiers in backends.tiers.items():
            is_hot = backends.adapters[writer.rows.name] in backends.read_uris(tiers.hot)
            if is_hot and tiers.cold not in writer.rows.cold:
                raise ValueError(
                    f"{writer.setting} keeps tables of rows at the adapter {writer.rows.name!r}, the hot tier of "
                    f"{name!r}, without the old changes that move to {tiers.cold!r}; write to {name!r}, or set "
                    "rows = false"
                )


class _RowWriter(NamedTuple):
    """A destination or flow, and the destination tables that it maintains at one adapter."""

    setting: str
    """Its name, such as `flows.NAME`."""
    where: frozenset[Condition]
    """A flow's filter; empty for a destination."""
    rows: Target
    """The adapter, and the tables."""

    def writes_same_rows(self, other: _RowWriter) -> bool:
        """Return whether both would write the same rows to a table."""
        return self.where == other.where and self.rows.cold == other.rows.cold


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
        for rows in backends.targets(Target(declared.to, declared.tables)):
            if not backends.adapters[rows.name].startswith(_OBJECT_STORES):
                yield _RowWriter(setting, frozenset(where), rows)


def _shared_table(first: Target, second: Target) -> str | None:
    """Return a table that both receive, as part of a sentence; None if they share none."""
    if not first.tables:
        first, second = second, first
    if not first.tables:  # both receive every table
        return "every table"
    shared = [table for table in first.tables if second.has_table(table)]
    return f"the table {min(shared)!r}" if shared else None
