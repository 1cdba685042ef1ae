"""Turns the destinations, flows and migrations that `lakesync.toml` declares into the tasks that Spark runs.

A backend is a database or object store, or a combination of them; access to one of these is an *adapter*. A destination
is a backend that receives the lake's deltas (changes of rows); a flow copies deltas from one backend to another; a
migration copies whole tables, day by day. Of a tiered backend, the hot tier has the newest deltas and the cold tier the
older ones. An erasure deletes a row's or client's data from all of them.

A gateway is one app's stream of deltas. An adapter of a destination has a mark: the newest delta that it has of each
stream, the deltas of one gateway in one shard (a part of *staging*, the gateways' store). Assets and the code location
call this module. Importing it loads neither Spark nor a database driver.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lakehouse.marks import destination_mark, first_ms
from lakehouse.schema_snapshot import registered
from lakesync.adapters.backend_config import (
    SingleBackend,
    WriteTarget,
    named_adapters,
    resolve_backend,
    single_backends,
    write_targets,
)
from lakesync.adapters.base import is_retry_due
from lakesync.analysis.lags import FollowerPosition
from lakesync.analysis.marks import FollowerMark
from lakesync.config.backends import LAKE, DeclaredDestination
from lakesync.model import hlc
from lakesync.model.hlc import wall_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakehouse.backends import destinations
    from lakehouse.backends.erasures import BackendErasure, UnwrittenTables
    from lakehouse.backends.flows import Flow, LakeFlow
    from lakehouse.backends.transfers import Migration
    from lakesync.adapters.backend_config import Backend
    from lakesync.adapters.redaction import RedactionRequest
    from lakesync.config import Config
    from lakesync.config.backends import DeclaredFlow, DeclaredMigration
    from lakesync.staging.store.pipeline import FlushStore, GatewayStore, PipelineMarks


class DestinationTarget(NamedTuple):
    """One database or object store (adapter) that a destination writes to. It follows the history with its own mark."""

    destination: str
    """Name of the destination in `lakesync.toml`."""
    declared: DeclaredDestination
    target: WriteTarget
    """The adapter, with the tables that it receives."""

    @property
    def mark_name(self) -> str:
        """Name of the mark, in staging and at the adapter."""
        return destination_mark(self.destination, self.target.name)

    @property
    def selection(self) -> str:
        """What the adapter receives, as JSON: `[tables, tables left out, gateways]`, where an empty list means all.

        A mark for another selection is ignored.
        """
        parts = [sorted(self.target.tables), sorted(self.target.without), sorted(self.declared.gateways)]
        return msgspec.json.encode(parts).decode()


def destination_targets(config: Config) -> Iterator[DestinationTarget]:
    """Yield every adapter of every destination.

    Args:
        config: the project's configuration.

    Raises:
        ConfigurationError: a destination reaches one adapter in two ways.
    """
    for name, declared in config.destinations.items():
        for target in write_targets(config, declared.to, declared.tables):
            yield DestinationTarget(name, declared, target)


def follower_positions(
    config: Config, store: PipelineMarks, wall: Callable[[], int] = wall_clock
) -> list[FollowerPosition]:
    """Return how far each adapter of the destinations follows the history, as its latest run reported it to staging.

    A position is empty if the adapter never ran, or if its selection of tables has changed since. A table that an
    adapter could not write is suspended (it gets no rows until a retry), and the others go on. If its retry is due, the
    adapter's arrivals are lowered by one, so that sensors find it behind and request a run.

    Args:
        config: the project's configuration, which declares the destinations.
        store: the staging store.
        wall: returns the server wall time in milliseconds since 1970.
    """
    marks = store.marks()
    positions = []
    for each in destination_targets(config):
        text = marks.get(each.mark_name)
        mark = msgspec.json.decode(text, type=FollowerMark) if text is not None else None
        streams = mark.streams if mark is not None and mark.selection == each.selection else {}
        if mark is not None and mark.retry_ms is not None and is_retry_due(mark.retry_ms, wall()):
            streams = {stream: arrival - 1 for stream, arrival in streams.items()}
        positions.append(FollowerPosition(each.mark_name, streams, frozenset(each.declared.gateways)))
    return positions


def follower_of(store: GatewayStore, destination: DestinationTarget) -> destinations.Follower:
    """Return the follower of one adapter of a destination: what the Spark tasks need that write to it.

    Args:
        store: the staging store, which has the schemas.
        destination: the destination's adapter.
    """
    from lakehouse.backends.destinations import Follower
    from lakesync.adapters.transfer.follower import DeltaSelection

    target, gateways = destination.target, destination.declared.gateways
    selection = DeltaSelection(tuple(target.tables), tuple(target.without), tuple(sorted(gateways)))
    # with `rows`, the adapter also keeps tables of current rows, which need schemas
    schemas = registered(store).select(selection) if destination.declared.rows else ()
    return Follower(destination.mark_name, target, selection, schemas)


def flow_tasks(config: Config, store: GatewayStore, name: str, declared: DeclaredFlow) -> list[Flow]:
    """Return a flow's task for each adapter that it writes to.

    Args:
        config: the project's configuration, which declares the backends.
        store: the staging store, which has the schemas.
        name: the flow's name.
        declared: the flow's declaration; its target is not the lake.
    """
    from lakehouse.backends.flows import Flow
    from lakesync.adapters.transfer.flow_pages import RowFilter

    source = resolve_backend(config, declared.source)
    followers, flows = _followers(config, source), _flows_into(config, source)
    registry, tasks = registered(store), []
    for target in write_targets(config, declared.to, declared.tables):
        row_filter = RowFilter.from_conditions(
            declared.where, tables=target.tables, without=target.without, gateways=declared.gateways
        )
        schemas = registry.select(row_filter) if declared.rows else ()
        mark = _flow_mark(name, target)
        tasks.append(Flow(mark, source, target, row_filter, schemas, followers=followers, flows=flows))
    return tasks


def lake_flow_task(config: Config, store: FlushStore, name: str, declared: DeclaredFlow) -> LakeFlow:
    """Return the task of a flow whose target is the lake.

    Args:
        config: the project's configuration, which declares the backends.
        store: the staging store, into whose gateways the flow pushes.
        name: the flow's name.
        declared: the flow's declaration.
    """
    from lakehouse.backends.flows import LakeFlow
    from lakehouse.gateway_connections import store_epochs
    from lakesync.adapters.transfer.flow_pages import RowFilter

    row_filter = RowFilter.from_conditions(declared.where, tables=declared.tables, gateways=declared.gateways)
    progress = config.data_dir / "flows" / f"{name}.json"
    source = resolve_backend(config, declared.source)
    followers, flows = _followers(config, source), _flows_into(config, source)
    epochs = store_epochs(store, declared.into)
    return LakeFlow(source, row_filter, declared.into, config, progress, epochs, followers=followers, flows=flows)


def flow_marks(config: Config) -> dict[str, str]:
    """Return the name of each flow's mark at each adapter that it writes to → the adapter's name."""
    return {
        _flow_mark(name, target): target.name
        for name, declared in config.flows.items()
        if declared.to != LAKE
        for target in write_targets(config, declared.to, declared.tables)
    }


def migration_task(config: Config, name: str, declared: DeclaredMigration, table: str, day: date) -> Migration:
    """Return the task that copies one table and day of a migration.

    Args:
        config: the project's configuration, which declares the backends.
        name: the migration's name.
        declared: the migration's declaration.
        table: the table to copy.
        day: the UTC day whose deltas are copied, by their hlc (the client's timestamp).
    """
    from lakehouse.backends.transfers import Migration
    from lakesync.adapters.transfer.migration import MigrationScope

    scope = MigrationScope(
        declared.gateway,
        (table,),
        since=hlc.start_of(first_ms(day)) - 1,  # exclusive: deltas after it are copied
        until=hlc.start_of(first_ms(day + timedelta(days=1))) - 1,  # inclusive
    )
    return Migration(
        f"migrations/{name}/{table}/{day}",
        resolve_backend(config, declared.source),
        resolve_backend(config, declared.to),
        scope,
        declared.page_size,
        str(config.data_dir / "migrations"),
    )


def target_erasures(
    config: Config, destination: DestinationTarget, store: GatewayStore, requests: tuple[RedactionRequest, ...]
) -> list[BackendErasure]:
    """Return the erasure at one adapter of a destination and at the cold tiers behind it.

    Args:
        config: the project's configuration, which declares the backends.
        destination: the destination's adapter.
        store: the staging store, which has the schemas.
        requests: what is erased.
    """
    from lakehouse.backends.erasures import BackendErasure

    target, schemas = destination.target, follower_of(store, destination).schemas
    unwritten = _unwritten_tables(config, store, target.uri)
    return [BackendErasure(SingleBackend(target.name, target.uri), requests, schemas, target.cold, unwritten=unwritten)]


def flow_erasures(
    config: Config,
    name: str,
    declared: DeclaredFlow,
    store: GatewayStore,
    requests: tuple[RedactionRequest, ...],
) -> list[BackendErasure]:
    """Return the erasures at the adapters that a flow writes and reads, except the lake.

    Args:
        config: the project's configuration, which declares the backends.
        name: the flow's name.
        declared: the flow's declaration.
        store: the staging store, which has the schemas.
        requests: what is erased.
    """
    from lakehouse.backends.erasures import BackendErasure

    tasks = flow_tasks(config, store, name, declared) if declared.to != LAKE else []
    written = [
        BackendErasure(
            SingleBackend(task.target.name, task.target.uri),
            requests,
            task.schemas,
            task.target.cold,
            task.row_filter,
            _unwritten_tables(config, store, task.target.uri),
        )
        for task in tasks
    ]
    return [*written, *backend_erasures(config, (declared.source,), store, requests)]


def tier_erasures(
    config: Config, name: str, store: GatewayStore, requests: tuple[RedactionRequest, ...]
) -> list[BackendErasure]:
    """Return the erasures at both tiers of a pair, and of the rows that the hot one merges from both.

    Args:
        config: the project's configuration, which declares the backends.
        name: the name of the pair.
        store: the staging store, which has the schemas.
        requests: what is erased.
    """
    declared = config.tiers[name]
    hot = {each.name for each in named_adapters(config, (declared.hot,))}
    cold = resolve_backend(config, declared.cold)
    written = [
        each for target in destination_targets(config) for each in target_erasures(config, target, store, requests)
    ]
    for flow, declared_flow in config.flows.items():
        written += flow_erasures(config, flow, declared_flow, store, requests)
    # The erasure of a destination or flow that writes to the hot tier includes the cold one, and recomputes the rows.
    with_rows = [each for each in written if each.backend.name in hot and cold in each.cold]
    covered = {each.backend.name for each in with_rows}
    if covered:
        covered |= {each.name for each in single_backends(cold)}
    # Erase the deltas of the other adapters, too.
    others = backend_erasures(config, (name,), store, requests)
    return [*with_rows, *(each for each in others if each.backend.name not in covered)]


def backend_erasures(
    config: Config, backends: Sequence[str], _store: GatewayStore, requests: tuple[RedactionRequest, ...]
) -> list[BackendErasure]:
    """Return the erasures at every adapter of some backends, each once, except the lake.

    Args:
        config: the project's configuration, which declares the backends.
        backends: names of backends in the configuration.
        _store: not used. The asset `erasure` calls this function and the three above with the same last arguments.
        requests: what is erased.
    """
    from lakehouse.backends.erasures import BackendErasure

    return [BackendErasure(adapter, requests) for adapter in named_adapters(config, backends)]


def _followers(config: Config, source: Backend) -> tuple[str, ...]:
    """Return the names of the marks of destinations that write to an adapter of a backend."""
    adapters = {each.name for each in single_backends(source)}
    return tuple(each.mark_name for each in destination_targets(config) if each.target.name in adapters)


def _flows_into(config: Config, source: Backend) -> tuple[str, ...]:
    """Return the names of the marks of flows that write to an adapter of a backend."""
    adapters = {each.name for each in single_backends(source)}
    return tuple(mark for mark, adapter in flow_marks(config).items() if adapter in adapters)


def _flow_mark(name: str, target: WriteTarget) -> str:
    """Return the name of a flow's mark at an adapter that it writes to."""
    return f"flows/{name}/{target.name}"


def _unwritten_tables(config: Config, store: GatewayStore, uri: str) -> UnwrittenTables:
    """Return which destination tables at an adapter no declared destination or flow writes.

    Args:
        config: the project's configuration, which declares destinations and flows.
        store: the staging store, which has the schemas.
        uri: the adapter's URI.
    """
    from lakehouse.backends.erasures import UnwrittenTables

    writers: list[destinations.Follower | Flow] = [follower_of(store, each) for each in destination_targets(config)]
    for name, declared in config.flows.items():
        writers += flow_tasks(config, store, name, declared) if declared.to != LAKE else []
    written = [schema for each in writers if each.target.uri == uri for schema in each.schemas]
    return UnwrittenTables(
        tuple({name for schema in written for name in (schema.table, schema.source_table or schema.table)}),
        {schema.table: schema.source_table for schema in registered(store).tables if schema.source_table is not None},
    )
