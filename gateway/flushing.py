"""Opens the adapters of a server: the target of its own flushes, if it runs without a pipeline, and sources for pulls.

`python -m gateway` opens them, starts the flush after the engine is open, and closes them at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import structlog

from gateway.bootstrap import Declarations
from gateway.metrics import Metrics
from lakesync.adapters import Adapter, open_adapter
from lakesync.adapters.backend_config import open_backend, resolve_backend
from lakesync.config import Config
from lakesync.engine import Engine
from lakesync.engine.flushing import Housekeeping
from lakesync.flush import FlushReport, FlushSettings, ObjectFlushQueue, Outlet
from lakesync.flush.object_queue import open_queue_store
from lakesync.flush.thresholds import adaptive_buffer
from lakesync.model.errors import LakeSyncError

log = structlog.get_logger("gateway")

_BATCH_DELTAS = 250_000
"""Default of the number of deltas in one batch, at most."""


class Backends:
    """The server's adapters, open until `close`."""

    def __init__(self, config: Config) -> None:
        """Open the adapters.

        Args:
            config: the project's configuration.

        Raises:
            ConfigurationError: no adapter supports a URI, or a declared file is missing or invalid.
            AdapterError: a backend cannot be opened.
        """
        self._declared = Declarations(config.gateways, config.connectors.declared)
        self._materialises = not config.flush.queue
        with ExitStack() as opening:
            self.outlet = _outlet(config, opening)
            self.sources = {name: _source(config, named, opening) for name, named in config.sources.items()}
            self._opened = opening.pop_all()
        self._housekeeping: Housekeeping | None = None

    def startup(self, engine: Engine, metrics: Metrics) -> Callable[[], None]:
        """Return a function that opens the engine, applies the declared schemas and rules, and starts the flush.

        The server calls the function in a worker thread once it responds to `/health`.

        Args:
            engine: the engine to open.
            metrics: the server's metrics, which count the flushes.
        """
        if self.outlet is None:

            def open_engine() -> None:
                engine.open()
                self._declared.apply(engine)

            return open_engine
        housekeeping = self._housekeeping = Housekeeping(
            engine,
            self.outlet,
            on_flushed=lambda report: _record_flush(report, metrics),
            on_failed=lambda _gateway, _error: metrics.flush_failures.inc(),
            on_materialisation_failure=lambda table, _deltas, _error: metrics.count_table_failure(table),
            materialises=self._materialises,
        )

        def open_engine_and_flush() -> None:
            engine.open()
            self._declared.apply(engine)
            housekeeping.start()

        return open_engine_and_flush

    def finish(self) -> None:
        """Flush the remaining deltas. Call it after the server has stopped and before the engine is closed."""
        if self._housekeeping is None:
            return
        try:
            self._housekeeping.finish()
        except LakeSyncError as error:
            log.warning("final flush failed", code=error.code, reason=str(error))

    def close(self) -> None:
        """Close the adapters."""
        self._opened.close()


def _outlet(config: Config, opening: ExitStack) -> Outlet | None:
    """Open the target of the server's own flushes; None if the pipeline flushes."""
    if not config.flush.to_uri:
        return None
    settings = FlushSettings(
        max_buffer_bytes=config.flush.max_bytes,
        max_buffer_age_ms=round(config.flush.max_age_seconds * 1000),
        per_table_budget_bytes=config.flush.max_table_bytes,
        adaptive=adaptive_buffer(config.flush.wide_row_columns, config.flush.wide_row_reduction),
        flush_format=config.flush.format,
        batch_deltas=config.flush.batch_deltas or _BATCH_DELTAS,
    )
    adapter = _opened(config.flush.to_uri, opening)
    queue = ObjectFlushQueue(open_queue_store(config.flush.queue, opening)) if config.flush.queue else None
    return Outlet.to(adapter, settings, queue)


def _source(config: Config, named: str, opening: ExitStack) -> Adapter:
    """Open the adapter of a URI or of a declared backend."""
    if ":" in named:
        return _opened(named, opening)
    place = open_backend(resolve_backend(config, named))
    opening.callback(place.close)
    return place


def _opened(uri: str, opening: ExitStack) -> Adapter:
    adapter = open_adapter(uri)
    opening.callback(adapter.close)
    return adapter


def _record_flush(report: FlushReport, metrics: Metrics) -> None:
    metrics.flushes.inc()
    metrics.flushed.inc(report.deltas)
    metrics.flush_seconds.observe(report.seconds)
    log.info(
        "flushed", gateway=report.gateway_id, deltas=report.deltas, bytes=report.bytes, ms=round(report.seconds * 1000)
    )
