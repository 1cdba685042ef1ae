"""Opens the adapters of a server, and starts its own flushes if no pipeline moves the deltas to the lake.

An adapter stores deltas (changes of rows) at a database or object store. The server opens the adapters from which
clients may pull (`[sources]`), and the target of its own flushes (`[flush] to_uri`). `python -m gateway` creates
`Backends` first, passes `engine_starter` to the server, which calls it once it listens, and closes them at the end. A
gateway, in this module, is one app's stream of changes; one server serves many.
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
from lakesync.engine.housekeeping import Housekeeping
from lakesync.engine.sources import SharedSource
from lakesync.flush import FlushReport, FlushSettings, Outlet, open_object_queue
from lakesync.model.errors import LakeSyncError

log = structlog.get_logger("gateway")


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
        # with a configured queue, another process updates the tables after this server's flushes
        self._updates_tables = not config.flush.queue
        with ExitStack() as opening:
            self.outlet = _outlet(config, opening)
            """The target of the server's own flushes; None if the pipeline flushes."""
            self.sources = {
                name: SharedSource(_source(config, declared.uri, opening), declared.gateway)
                for name, declared in config.sources.items()
            }
            """The sources from which clients of every gateway may pull, by name."""
            self._closing = opening.pop_all()
        self._housekeeping: Housekeeping | None = None
        """Flushes in the background; None if the pipeline flushes."""

    def engine_starter(self, engine: Engine, metrics: Metrics) -> Callable[[], None]:
        """Return a function that opens the engine, applies the declarations, and starts the server's own flushes.

        The server calls the function in a worker thread once it responds to `/health`.

        Args:
            engine: the engine to open.
            metrics: the server's metrics, which count the flushes.
        """
        if self.outlet is not None:
            self._housekeeping = Housekeeping(
                engine,
                self.outlet,
                on_flushed=lambda report: _record_flush(report, metrics),
                on_failed=lambda _gateway, _error: metrics.flush_failures.inc(),
                on_materialisation_failure=lambda table, _deltas, _error: metrics.count_table_failure(table),
                materialises=self._updates_tables,
            )

        def start_engine() -> None:
            engine.open()
            self._declared.apply(engine)
            if self._housekeeping is not None:
                self._housekeeping.start()

        return start_engine

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
        self._closing.close()


def _outlet(config: Config, opening: ExitStack) -> Outlet | None:
    """Open the target of the server's own flushes; None if the pipeline flushes."""
    if not config.flush.to_uri:
        return None
    adapter = _opened(config.flush.to_uri, opening)
    queue = open_object_queue(config.flush.queue, opening) if config.flush.queue else None
    return Outlet(adapter, FlushSettings.of_section(config.flush), queue)


def _source(config: Config, uri_or_backend: str, opening: ExitStack) -> Adapter:
    """Open the adapter of a URI, or of a declared backend, whose name has no colon."""
    if ":" in uri_or_backend:
        return _opened(uri_or_backend, opening)
    backend = open_backend(resolve_backend(config, uri_or_backend))
    opening.callback(backend.close)
    return backend


def _opened(uri: str, opening: ExitStack) -> Adapter:
    """Open the adapter of a URI; `opening` closes it."""
    adapter = open_adapter(uri)
    opening.callback(adapter.close)
    return adapter


def _record_flush(report: FlushReport, metrics: Metrics) -> None:
    """Count and log a flush by this server itself."""
    metrics.flushes.inc()
    metrics.flushed.inc(report.deltas)
    metrics.flush_seconds.observe(report.seconds)
    log.info(
        "flushed", gateway=report.gateway_id, deltas=report.deltas, bytes=report.bytes, ms=round(report.seconds * 1000)
    )
