"""The checks across the sections about backends. `Config` calls `check_backends` when settings are read.

A *backend* is an adapter (one database or object store), or is composed of other backends. A *destination* copies all
deltas (changes of rows) from the lake to a backend, a *flow* those that satisfy its filter. Both also maintain
*destination tables* there, tables with the current rows. *Tiers* are a hot and a cold backend: old deltas are copied to
the cold one, read back there, and deleted from the hot one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from typing import NamedTuple

from lakesync.config.backends import LAKE, Backends, Condition, DeclaredDestination, DeclaredFlow, Target

_OBJECT_STORES = ("file://", "s3://")
"""URI schemes of adapters that store only changes of rows, and no destination tables."""


def check_backends(backends: Backends) -> None:
    """Check the names of backends, and what the sections about them say about each other.

    Every name must be declared exactly once. No backend may contain itself, and a fan-out or tiers must name different
    parts. No flow or migration may lead to its own source, no migration may end before it begins, and names of Dagster
    steps must differ. No tiers may delete deltas that must stay, and writers of one destination table must write the
    same rows.

    Args:
        backends: the sections of one configuration.

    Raises:
        ValueError: a check failed; the message names the setting and the remedy.
    """
    declared: dict[str, str] = {}
    for section in ("adapters", "routes", "fan_out", "tiers"):
        for name in getattr(backends, section):
            if name == LAKE:
                raise ValueError(f"{section}.{LAKE} uses the reserved name of the lake; choose another name")
            if name in declared:
                raise ValueError(
                    f"{section}.{name} has the same name as {declared[name]}.{name}; choose another name for one"
                )
            declared[name] = section
    known = ", ".join(sorted(declared)) or "none"
    for setting, name, may_be_lake in _names_in_settings(backends):
        if name not in declared and not (may_be_lake and name == LAKE):
            raise ValueError(
                f"{setting} names {name!r}, which is not declared (declared: {known}); add it to [adapters], [routes], "
                "[fan_out] or [tiers]"
            )
    for name in declared:
        _check_not_circular(backends, name, containers=())
    _check_distinct_parts(backends)
    _check_step_names(backends)
    for name, migration in backends.migrations.items():
        if migration.until is not None and migration.until < migration.since:
            raise ValueError(
                f"migrations.{name}.until, {migration.until}, lies before since, {migration.since}; set a later day"
            )
        if migration.source == migration.to:
            raise ValueError(f"migrations.{name} leads from {migration.to!r} to itself; name two different backends")
    for name, flow in backends.flows.items():
        _check_flow_leads_elsewhere(backends, name, flow)
    _check_tiers(backends)
    _check_row_ownership(backends)


def _check_distinct_parts(backends: Backends) -> None:
    """Check that no fan-out names a backend twice, and that the tiers of a backend differ."""
    for name in (*backends.fan_out, *backends.tiers):
        named: set[str] = set()
        for setting, part in backends.parts(name):
            if part in named:
                raise ValueError(f"{setting} names {part!r}, which {name!r} has already; name another backend")
            named.add(part)


def _check_flow_leads_elsewhere(backends: Backends, name: str, flow: DeclaredFlow) -> None:
    """Check that no table of a flow has its source and its destination at one adapter.

    Args:
        backends: the sections, whose names are declared and not circular.
        name: the flow's name.
        flow: the flow.
    """
    if flow.source == flow.to:
        raise ValueError(f"flows.{name} leads from {flow.to!r} to itself; name two different backends")
    routed = sorted({table for routes in backends.routes.values() for table in routes.tables})
    tables: Sequence[str | None] = flow.tables or (*routed, None)
    for table in tables:
        shared = backends.adapters_of_table(flow.source, table) & backends.adapters_of_table(flow.to, table)
        if shared:
            raise ValueError(
                f"flows.{name} leads from {flow.source!r} to {flow.to!r}, which share the adapter {min(shared)!r}; "
                "name backends without a common adapter"
            )


def _check_step_names(backends: Backends) -> None:
    """Check that no two adapters of destinations get the same Dagster step name, which joins names with `__`."""
    steps: dict[str, str] = {}
    for name, destination in backends.destinations.items():
        for adapter in sorted(backends.adapters_of(destination.to)):
            described = f"the adapter {adapter!r} of destinations.{name}"
            other = steps.setdefault(f"{name}__{adapter}", described)
            if other != described:
                raise ValueError(
                    f"{described} and {other} would both be called {name}__{adapter} in Dagster; rename one of them "
                    "without two underscores in a row"
                )


def _names_in_settings(backends: Backends) -> Iterator[tuple[str, str, bool]]:
    """Yield `(setting, backend's name in it, whether it may be "lake")` for each setting that names a backend."""
    for name in (*backends.routes, *backends.fan_out, *backends.tiers):
        for setting, part in backends.parts(name):
            yield setting, part, False
    for name, destination in backends.destinations.items():
        yield f"destinations.{name}.to", destination.to, False
    for name, flow in backends.flows.items():
        yield f"flows.{name}.from", flow.source, True
        yield f"flows.{name}.to", flow.to, True
    for name, migration in backends.migrations.items():
        yield f"migrations.{name}.from", migration.source, True
        yield f"migrations.{name}.to", migration.to, False
    for name, source in backends.sources.items():
        if ":" not in source.uri:  # a name, not a URI
            yield f"sources.{name}", source.uri, True


def _check_not_circular(backends: Backends, name: str, containers: tuple[str, ...]) -> None:
    """Check that a backend does not contain itself; `containers` are the backends that contain it, outermost first."""
    if name in containers:
        raise ValueError(f"the backend {name!r} contains itself: {' → '.join((*containers, name))}; remove one part")
    for _, part in backends.parts(name):
        _check_not_circular(backends, part, (*containers, name))


def _check_tiers(backends: Backends) -> None:
    """Check that no tiers delete deltas that they must keep, or that other tiers or flows would miss."""
    for name, tiers in backends.tiers.items():
        shared = backends.read_uris(tiers.hot) & backends.read_uris(tiers.cold)
        if shared:
            raise ValueError(
                f"tiers.{name}.cold leads to {_named(backends, shared)}, which the hot tier has too: deltas that move "
                "would be deleted there; name backends without a common adapter"
            )
        for part in sorted(backends.contents_of(tiers.cold) & backends.fan_out.keys()):
            raise ValueError(
                f"tiers.{name}.cold leads to the fan-out {part!r}, but deltas move to its primary only; "
                f"name {backends.fan_out[part].primary!r} instead"
            )
    for name, other in permutations(backends.tiers, 2):
        if name not in backends.contents_of(other):  # the outer tiers read through the inner ones
            remedy = "let one contain the other, or name another adapter"
            _check_reads_moved(backends, f"tiers.{name}", name, other, remedy)
    for (name, flow), other in product(backends.flows.items(), backends.tiers):
        if flow.source != LAKE:
            _check_reads_moved(backends, f"flows.{name}", flow.source, other, f"let the flow read {other!r}")


def _check_reads_moved(backends: Backends, reader: str, source: str, tiers: str, remedy: str) -> None:
    """Check that a reader of the hot tier also reads the deltas that tiers move from there.

    A flow of the hot tier alone would miss a late delta that moves before the flow runs. Its filter would read rows
    without their old columns.

    Args:
        backends: the sections.
        reader: the setting of the reader.
        source: the backend that it reads.
        tiers: the name of the tiers.
        remedy: the end of the error's message.
    """
    shared = backends.read_uris(source) & backends.read_uris(backends.tiers[tiers].hot)
    if shared and tiers not in backends.contents_of(source):
        raise ValueError(
            f"{reader} and tiers.{tiers} both have {_named(backends, shared)}, from which tiers.{tiers} moves old "
            f"deltas: {reader} would miss those; {remedy}"
        )


def _named(backends: Backends, uris: set[str]) -> str:
    """Return the names of the adapters with some URIs, as part of a sentence; a URI may contain a password."""
    names = sorted(name for name, uri in backends.adapters.items() if uri in uris)
    return f"the adapter {' or '.join(map(repr, names))}"


def _check_row_ownership(backends: Backends) -> None:
    """Check that all writers that maintain one destination table at one adapter write the same rows to it.

    A writer is a destination or flow with `rows = true`. If two of them maintained one table at one adapter with
    different rows, each would delete rows that the other inserted. Two things decide which rows a writer writes: its
    filter, and the cold tiers whose hot tier the adapter is, because it also merges the old changes that are there.

    Likewise, a writer to a hot tier must also know its cold tier.
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
