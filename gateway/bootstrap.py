"""Applies the schemas, sync rules and connectors that `lakesync.toml` declares to the gateways of an engine.

The server does so when it starts (`gateway.flushing.Backends.startup`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import structlog

from lakesync.config.sections import DeclaredConnector, DeclaredGateway
from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError, SchemaError, ValidationError
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.secrets import REFERENCE_PREFIXES
from lakesync.rules.model import SyncRules, parse_rules

NO_CONNECTORS: Mapping[str, DeclaredConnector] = MappingProxyType({})
log = structlog.get_logger("gateway")


class Declarations:
    """The declared schemas and rules, read from their files, and the declared connectors."""

    def __init__(
        self, gateways: Mapping[str, DeclaredGateway], connectors: Mapping[str, DeclaredConnector] = NO_CONNECTORS
    ) -> None:
        """Read and check the declared files.

        Args:
            gateways: gateway id → declaration.
            connectors: connector name → declaration.

        Raises:
            ConfigurationError: a file is missing or invalid; the message names it.
        """
        self._schemas = {name: [_schema(path) for path in declared.schemas] for name, declared in gateways.items()}
        self._rules = {name: _rules(declared.rules) for name, declared in gateways.items() if declared.rules}
        self._connectors = connectors

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
            _register(engine, name, connector)

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
                if registered is None or not schema.types.items() <= registered.schema.types.items():
                    gateway.register_schema(schema)
            rules = self._rules.get(name)
            if rules is None or rules == known.rules:
                continue
            if known.rules_version == 0:
                gateway.set_rules(rules)
            else:
                log.info("active rules differ from the declared ones: not changed", gateway=name)


def _register(engine: Engine, name: str, declared: DeclaredConnector) -> None:
    """Register a connector, unless it is registered with the same settings.

    Raises:
        ConfigurationError: a secret is not a reference, or the settings are invalid.
    """
    kind = engine.connectors.find(declared.type)
    for field in sorted(kind.descriptor.secrets & declared.settings.keys()) if kind is not None else ():
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
    try:
        return parse_schema(_read(path))
    except SchemaError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _rules(path: str) -> SyncRules:
    try:
        return parse_rules(_read(path))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _read(path: str) -> Any:
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}; [gateways] names it") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
