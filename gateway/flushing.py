"""The flush of a server that has no pipeline behind it, and the sources that its clients may pull from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import structlog

from gateway.declared import Declarations
from gateway.metrics import Metrics
from lakesync.adapters import Adapter, open_adapter
from lakesync.adapters.places import open_place, place_of
from lakesync.config import Config
from lakesync.engine import Engine
from lakesync.engine.flushing import Housekeeping
from lakesync.flush import FlushReport, FlushSettings, ObjectFlushQueue, Outlet
from lakesync.flush.object_queue import opened_objects
from lakesync.flush.settings import adaptive
from lakesync.model.errors import LakeSyncError

log = structlog.get_logger("gateway")

_BATCH_DELTAS = 250_000
"""In one batch at most, unless the configuration says otherwise."""


class Backends:
    """The adapters that a server is configured with, open until `close`."""

    def __init__(self, config: Config) -> None:
        """Open what is configured.

        Raises:
            ConfigurationError: a URI names no adapter, or a declared gateway's file cannot be used.
            AdapterError: a backend cannot be opened.
        """
        self._declared = Declarations(config.gateways, config.connectors.declared)
        self._materialises = not config.flush.queue
        with ExitStack() as opening:
            self.outlet = _outlet(config, opening)
            self.sources = {name: _source(config, named, opening) for name, named in config.sources.items()}
            self._opened = opening.pop_all()
        self._house: Housekeeping | None = None

    def beside(self, engine: Engine, metrics: Metrics) -> Callable[[], None]:
        """What opens the engine, tells it what was declared, and begins to flush where the server is to do that."""
        if self.outlet is None:

            def only_open() -> None:
                engine.open()
                self._declared.apply(engine)

            return only_open
        house = self._house = Housekeeping(
            engine,
            self.outlet,
            on_flushed=lambda report: _flushed(report, metrics),
            on_failed=lambda _gateway, _error: metrics.flush_failures.inc(),
            on_materialisation_failure=lambda table, _deltas, _error: metrics.table_failed(table),
            materialises=self._materialises,
        )

        def begin() -> None:
            engine.open()
            self._declared.apply(engine)
            house.start()

        return begin

    def finish(self) -> None:
        """Carry what waits, after the server stopped and before its engine closes."""
        if self._house is None:
            return
        try:
            self._house.finish()
        except LakeSyncError as error:
            log.warning("what waits was not flushed at the end", code=error.code, reason=str(error))

    def close(self) -> None:
        """Release the adapters."""
        self._opened.close()


def _outlet(config: Config, opening: ExitStack) -> Outlet | None:
    if not config.flush.to_uri:
        return None
    settings = FlushSettings(
        max_buffer_bytes=config.flush.max_bytes,
        max_buffer_age_ms=round(config.flush.max_age_seconds * 1000),
        per_table_budget_bytes=config.flush.max_table_bytes,
        adaptive=adaptive(config.flush.wide_row_columns, config.flush.wide_row_reduction),
        flush_format=config.flush.format,
        batch_deltas=config.flush.batch_deltas or _BATCH_DELTAS,
    )
    adapter = _opened(config.flush.to_uri, opening)
    queue = ObjectFlushQueue(opened_objects(config.flush.queue, opening)) if config.flush.queue else None
    return Outlet.to(adapter, settings, queue)


def _source(config: Config, named: str, opening: ExitStack) -> Adapter:
    """The adapter of a URI, or of a place that is declared."""
    if ":" in named:
        return _opened(named, opening)
    place = open_place(place_of(config, named))
    opening.callback(place.close)
    return place


def _opened(uri: str, opening: ExitStack) -> Adapter:
    adapter = open_adapter(uri)
    opening.callback(adapter.close)
    return adapter


def _flushed(report: FlushReport, metrics: Metrics) -> None:
    metrics.flushes.inc()
    metrics.flushed.inc(report.deltas)
    metrics.flush_seconds.observe(report.seconds)
    log.info(
        "flushed", gateway=report.gateway_id, deltas=report.deltas, bytes=report.bytes, ms=round(report.seconds * 1000)
    )
