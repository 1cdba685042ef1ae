"""`open_gateway`: a gateway in an application's own process, without a server and a data pipeline.

A *gateway* is one app's stream of changes. Applications call `lakesync.open_gateway`. Deltas (changes of rows) are
committed to a *staging store* and, if an *adapter* is given, flushed to that database or object store in the background
(`engine.housekeeping`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog

from lakesync.adapters.registry import Adapter, open_adapter
from lakesync.engine.checks import EngineLimits
from lakesync.engine.engine import Engine
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.housekeeping import Housekeeping, OnFlushed
from lakesync.flush import FlushQueue, FlushSettings, OnFailure, Outlet
from lakesync.model import hlc
from lakesync.model.schema import TableSchema
from lakesync.rules.model import SyncRules
from lakesync.staging import open_store


@contextmanager
def open_gateway(
    gateway_id: str,
    *,
    adapter: Adapter | str | None = None,
    staging: Path | str = "memory://",
    flush: FlushSettings | None = None,
    max_backpressure_bytes: int | None = None,
    schemas: Iterable[TableSchema] = (),
    rules: SyncRules | None = None,
    sources: Mapping[str, Adapter] | None = None,
    queue: FlushQueue | None = None,
    on_flushed: OnFlushed | None = None,
    on_materialisation_failure: OnFailure | None = None,
    background: bool = True,
    wall: Callable[[], int] = hlc.wall_clock,
) -> Iterator[SyncGateway]:
    """Open a gateway for a `with` block, and flush everything at its end.

        with lakesync.open_gateway("shop", adapter="file:///var/lib/shop") as gateway:
            gateway.handle_push(push)

    Args:
        gateway_id: the gateway's id; one staging store and one adapter may contain several gateways.
        adapter: the database or object store that deltas are flushed to, as an open adapter or as a URI. An open
            adapter stays open. None keeps deltas in staging.
        staging: a `Path`, the folder of a store on SQLite; or a text, a URL for `open_store`. With `memory://`,
            unflushed deltas are lost when the process ends.
        flush: thresholds and format of flushes; None flushes after 4 MiB or 30 s.
        max_backpressure_bytes: unflushed bytes above which pushes are rejected; by default twice the `max_buffer_bytes`
            of `flush`, and 1 GiB without an adapter. Without an adapter nothing is flushed, so set it to the most that
            staging may keep.
        schemas: table schemas to register.
        rules: sync rules to activate, if they differ from the active ones; None keeps the active ones.
        sources: adapters that clients can pull from, by source name. Clients get all deltas of an adapter; see
            `SyncGateway.register_source` for one with deltas of several gateways.
        queue: stores which updates of destination tables are still to be made, if the adapter maintains such tables
            (tables with the current rows, beside the deltas); by default, the staging store has them.
        on_flushed: called after each flush that wrote deltas, with its report.
        on_materialisation_failure: called for each update of a destination table that failed too often and was set
            aside.
        background: whether a thread flushes when a threshold is exceeded. Otherwise call `flush` when `should_flush`
            returns true.
        wall: returns wall time in milliseconds since 1970.

    Yields:
        The open gateway.

    Raises:
        ConfigurationError: a URL or a setting is invalid.
        SchemaError: a schema is invalid, or conflicts with the registered one.
        StagingUnavailableError: staging cannot be opened.
        FlushError: the final flush failed. The deltas stay in a durable staging store.
    """
    log_to_stderr()
    settings = flush or FlushSettings()
    with ExitStack() as closing:
        if isinstance(adapter, str):
            adapter = open_adapter(adapter)
            closing.callback(adapter.close)
        outlet = Outlet(adapter, settings, queue) if adapter is not None else None
        limits = _limits(settings, max_backpressure_bytes, flushes=outlet is not None)
        url = f"sqlite://{staging.absolute()}" if isinstance(staging, Path) else staging
        engine = Engine(open_store(url, wall), wall, limits, outlet=outlet)
        closing.callback(engine.close)  # also if `open` fails: the store may be open already, and locked
        engine.open()
        gateway = engine.gateway(gateway_id)
        for name, source in (sources or {}).items():
            gateway.register_source(name, source)
        for schema in schemas:
            gateway.register_schema(schema)
        if rules is not None and gateway.config().rules != rules:
            gateway.set_rules(rules)
        if outlet is None:
            yield gateway
            return
        housekeeping = Housekeeping(
            engine, outlet, on_flushed=on_flushed, on_materialisation_failure=on_materialisation_failure
        )
        closing.callback(housekeeping.finish)  # acknowledged deltas are flushed also if the block raises
        if background:
            housekeeping.start()
        yield gateway


def log_to_stderr() -> None:
    """Let this process log to stderr, unless it has configured structlog; by default structlog logs to stdout.

    Commands of `lakesync` that open a store or an adapter themselves call it too: their stdout is for results.
    """
    if not structlog.is_configured():
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def _limits(settings: FlushSettings, max_backpressure_bytes: int | None, *, flushes: bool) -> EngineLimits:
    """Return the engine's limits; without an explicit bound, the backlog may be twice the flush threshold."""
    if max_backpressure_bytes is not None:
        return EngineLimits(max_backpressure_bytes=max_backpressure_bytes)
    return EngineLimits(max_backpressure_bytes=2 * settings.max_buffer_bytes) if flushes else EngineLimits()
