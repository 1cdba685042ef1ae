"""Applies what `lakesync.toml` declares for gateways: the schemas of their tables, their sync rules and connectors.

A gateway is one app's stream of changes; one server serves many. A schema has the columns of a table; sync rules decide
which rows a client sees; a connector reaches an external system. `python -m gateway` reads the declared files before
the server starts (`Declarations`), and `gateway.backends` has them applied once the engine is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lakesync.config.sections import DeclaredConnector, DeclaredGateway
from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError, SchemaError, ValidationError
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.secrets import REFERENCE_PREFIXES
from lakesync.rules.model import SyncRules, parse_rules

log = structlog.get_logger("gateway")


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
        self._schemas = {name: [_schema(path) for path in declared.schemas] for name, declared in gateways.items()}
        self._rules = {name: _rules(declared.rules) for name, declared in gateways.items() if declared.rules}
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
        for name, schemas in self._schemas.items():
            gateway = engine.gateway(name)
            known = gateway.config()
            for schema in schemas:
                if schema.table in known.retired:
                    log.info("declared schema is retired: not registered again", gateway=name, table=schema.table)
                    continue
                registered = known.schemas.get(schema.table)
                # columns that were added at run time are not in the file
                if registered is None or not schema.types.items() <= registered.schema.types.items():
                    gateway.register_schema(schema)
            rules = self._rules.get(name)
            if rules is None or rules == known.rules:
                continue
            if known.rules_version == 0:  # no rules were ever activated
                gateway.set_rules(rules)
            else:
                log.info("active rules differ from the declared ones: not changed", gateway=name)


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


def _schema(path: str) -> TableSchema:
    """Read a schema's file; raise ConfigurationError with its path if that fails."""
    try:
        return parse_schema(_read(path))
    except SchemaError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _rules(path: str) -> SyncRules:
    """Read a file of sync rules; raise ConfigurationError with its path if that fails."""
    try:
        return parse_rules(_read(path))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _read(path: str) -> Any:
    """Read a JSON file; raise ConfigurationError with its path if that fails."""
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}; [gateways] names it") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
