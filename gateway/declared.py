"""What `lakesync.toml` says of a gateway before anybody said anything at run time: its schemas and its rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lakesync.config_sections import DeclaredGateway
from lakesync.engine import Engine
from lakesync.exceptions import ConfigurationError, SchemaError, ValidationError
from lakesync.rules.model import SyncRules, parse_rules
from lakesync.schema import TableSchema, parse_schema

log = structlog.get_logger("gateway")


class Declarations:
    """The files that the gateways of a configuration name, read and checked."""

    def __init__(self, gateways: Mapping[str, DeclaredGateway]) -> None:
        """Read them.

        Raises:
            ConfigurationError: a file is missing, or not of the documented form; the message names it.
        """
        self._schemas = {name: [_schema(path) for path in declared.schemas] for name, declared in gateways.items()}
        self._rules = {name: _rules(declared.rules) for name, declared in gateways.items() if declared.rules}

    def apply(self, engine: Engine) -> None:
        """Tell the gateways of an open engine. What was told at run time stays: rules, and columns that were added.

        Raises:
            SchemaError: a file contradicts what is registered.
        """
        for name, schemas in self._schemas.items():
            gateway = engine.gateway(name)
            known = gateway.config()
            for schema in schemas:
                registered = known.schemas.get(schema.table)
                if registered is None or not schema.types.items() <= registered.schema.types.items():
                    gateway.register_schema(schema)
            rules = self._rules.get(name)
            if rules is None or rules == known.rules:
                continue
            if known.rules_version == 0:
                gateway.set_rules(rules)
            else:
                log.info("other rules were set since than the file has; they stay in force", gateway=name)


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
