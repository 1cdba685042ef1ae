"""Prepares the gateway server for what `lakesync.toml` declares: its adapters, and each gateway's configuration.

An adapter stores deltas (changes of rows) at a database or object store. The server opens the adapters from which
clients may pull (`[sources]`), and the target of its own flushes (`[flush] to_uri`), if no pipeline moves the deltas to
the lake. A gateway, in this module, is one app's stream of changes; one server serves many. A schema has the columns of
a table; sync rules decide which rows a client sees; a connector reaches an external system.

`python -m gateway` creates `Backends` first, which reads the declared files (`Declarations`). It passes
`engine_starter` to the server, which calls it once it listens, and closes the backends at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import structlog

from gateway.metrics import Metrics
from lakesync.adapters import Adapter, open_adapter
from lakesync.adapters.backend_config import open_backend, resolve_backend
from lakesync.config import Config
from lakesync.config.sections import DeclaredConnector, DeclaredGateway
from lakesync.engine import Engine
from lakesync.engine.declared_files import DeclaredFiles
from lakesync.engine.housekeeping import Housekeeping
from lakesync.engine.sources import SharedSource
from lakesync.flush import FlushReport, FlushSettings, Outlet, open_object_queue, record_target
from lakesync.model.errors import ConfigurationError, ValidationError, log_code
from lakesync.model.secrets import REFERENCE_PREFIXES, without_password

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
        self._to_uri = config.flush.to_uri
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
                previous = record_target(engine.store, self._to_uri)
                if previous is not None:
                    log.warning(
                        "flush.to_uri has changed: copy the deltas of the previous target with `lakesync migrate`",
                        previous=previous,
                        target=without_password(self._to_uri),
                    )
                self._housekeeping.start()

        return start_engine

    def finish(self) -> None:
        """Flush the remaining deltas; an error is only logged. Call it before the engine is closed."""
        if self._housekeeping is None:
            return
        try:
            self._housekeeping.finish()
        except Exception as error:  # an adapter may raise any, and the engine is still to be closed
            log.warning("final flush failed", code=log_code(error), reason=str(error))

    def close(self) -> None:
        """Close the adapters."""
        self._closing.close()


class Declarations:
    """The declared schemas and rules, read from their files, and the declared connectors."""

    def __init__(
        self, gateways: Mapping[str, DeclaredGateway], connectors: Mapping[str, DeclaredConnector] | None = None
    ) -> None:
        """Read and check the declared files.

        Args:
            gateways: gateway id → declaration.
            connectors: connector name → declaration; None for none.

        Raises:
            ConfigurationError: a file is missing or invalid; the message names it.
        """
        self._files = {name: DeclaredFiles.of_gateway(declared) for name, declared in gateways.items()}
        self._connectors = connectors or {}

    def apply(self, engine: Engine) -> None:
        """Apply the declarations to the gateways of an open engine.

        It does not undo changes that were made at run time: activated rules, added columns, retired schemas. A declared
        connector replaces a registered one of the same name with other settings.

        Args:
            engine: an open engine.

        Raises:
            SchemaError: a declared schema contradicts the registered one.
            ConfigurationError: a connector cannot be registered.
        """
        self._apply_files(engine)
        for name, connector in self._connectors.items():
            _register_connector(engine, name, connector)

    def _apply_files(self, engine: Engine) -> None:
        """Register the schemas and activate the rules that the files declare, unless they were changed at run time."""
        for name, files in self._files.items():
            gateway = engine.gateway(name)
            known = gateway.config()
            for schema in files.schemas:
                if schema.table in known.retired:
                    log.info("declared schema is retired: not registered again", gateway=name, table=schema.table)
                    continue
                registered = known.schemas.get(schema.table)
                # columns that were added at run time are not in the file
                if registered is None or not schema.types.items() <= registered.schema.types.items():
                    gateway.register_schema(schema)
            rules = files.rules
            if rules is None or rules == known.rules:
                continue
            if known.rules_version == 0:  # no rules were ever activated
                gateway.set_rules(rules)
            else:
                log.info("active rules differ from the declared ones: not changed", gateway=name)


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


def _register_connector(engine: Engine, name: str, declared: DeclaredConnector) -> None:
    """Register a connector, unless it is registered with the same settings.

    Raises:
        ConfigurationError: a secret is not a reference, or the settings are invalid.
    """
    connector_type = engine.connectors.find(declared.type)
    secrets = connector_type.descriptor.secrets if connector_type is not None else frozenset()
    for field in sorted(secrets & declared.settings.keys()):
        if not str(declared.settings[field]).startswith(REFERENCE_PREFIXES):
            raise ConfigurationError(
                f"connectors.{name}.{declared.type}.{field} is a secret: write a reference, such as "
                f'"env:CONNECTOR_{declared.gateway}_{name.upper()}"'
            )
    try:
        is_new = engine.gateway(declared.gateway).declare_connector(declared.body(name))
    except ValidationError as error:
        raise ConfigurationError(f"connectors.{name} cannot be registered: {error}") from error
    if is_new:
        log.info("declared connector registered", gateway=declared.gateway, connector=name)
