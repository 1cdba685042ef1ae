"""One gateway in an application's own process: no server, no pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lakesync.adapters.base import Adapter
from lakesync.adapters.registry import open_adapter
from lakesync.engine.engine import Engine
from lakesync.engine.flushing import Housekeeping, OnFlushed
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.limits import EngineLimits
from lakesync.flush import FlushQueue, FlushSettings, Outlet
from lakesync.flush.materialiser import OnFailure
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
    """A gateway for as long as the `with` lasts; at its end what waits is flushed.

        with lakesync.open_gateway("shop", adapter="file:///var/lib/shop") as gateway:
            gateway.handle_push(push)

    Args:
        gateway_id: its name; staging and adapter may hold several.
        adapter: where deltas go, or its URI; one that is given open stays open. None: they stay in staging.
        staging: a folder for SQLite, or a URL as `open_store` takes it. In memory, what was not flushed is lost with
            the process.
        flush: thresholds and format; as they are by default, after 1 MiB or 30 s.
        max_backpressure_bytes: unflushed bytes above which pushes are refused; twice `max_buffer_bytes` unless given,
            and 1 GiB where there is no adapter.
        schemas: registered, or evolved, on opening.
        rules: put in force on opening, where they differ from those that are.
        sources: adapters that clients pull from by name.
        queue: work for the destination's tables; in memory unless given, where the adapter keeps tables.
        on_flushed: told of each flush that carried something.
        on_materialisation_failure: told of each table whose work failed for good.
        background: whether a thread flushes what is due; otherwise call `flush` where `should_flush` says so.
        wall: the clock, in milliseconds.

    Raises:
        ConfigurationError: a URL or a setting cannot be used.
        StagingUnavailableError: staging cannot be opened.
        FlushError: at the end: what waits could not be flushed. It stays in staging, if that is a durable one.
    """
    settings = flush or FlushSettings()
    with ExitStack() as closing:
        if isinstance(adapter, str):
            adapter = open_adapter(adapter)
            closing.callback(adapter.close)
        outlet = Outlet.to(adapter, settings, queue) if adapter is not None else None
        limits = _limits(settings, max_backpressure_bytes, flushes=outlet is not None)
        url = f"sqlite://{staging.absolute()}" if isinstance(staging, Path) else staging
        engine = Engine(open_store(url, wall), wall, limits, outlet=outlet, sources=sources)
        engine.open()
        closing.callback(engine.close)
        gateway = engine.gateway(gateway_id)
        for schema in schemas:
            gateway.register_schema(schema)
        if rules is not None and gateway.config().rules != rules:
            gateway.set_rules(rules)
        if outlet is None:
            yield gateway
            return
        house = Housekeeping(
            engine, outlet, on_flushed=on_flushed, on_materialisation_failure=on_materialisation_failure
        )
        closing.callback(house.finish)  # what was acknowledged is carried, however the `with` ends
        if background:
            house.start()
        yield gateway


def _limits(settings: FlushSettings, max_backpressure_bytes: int | None, *, flushes: bool) -> EngineLimits:
    if max_backpressure_bytes is not None:
        return EngineLimits(max_backpressure_bytes=max_backpressure_bytes)
    return EngineLimits(max_backpressure_bytes=2 * settings.max_buffer_bytes) if flushes else EngineLimits()
