"""Reads the files of schemas and sync rules that `[gateways.NAME]` in `lakesync.toml` names.

The gateway server applies them when it starts; `lakesync doctor` checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from lakesync.model.errors import ConfigurationError, SchemaError, ValidationError
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.rules.model import SyncRules, parse_rules

if TYPE_CHECKING:
    from lakesync.config.sections import DeclaredGateway

T = TypeVar("T")


class DeclaredFiles(NamedTuple):
    """The contents of one gateway's files."""

    schemas: list[TableSchema]
    rules: SyncRules | None
    """None if the gateway declares no rules."""

    @classmethod
    def of_gateway(cls, declared: DeclaredGateway) -> DeclaredFiles:
        """Read and check a gateway's files.

        Raises:
            ConfigurationError: a file is missing or invalid; the message names it.
        """
        schemas = [_parsed(path, parse_schema) for path in declared.schemas]
        return cls(schemas, _parsed(declared.rules, parse_rules) if declared.rules else None)


def _parsed(path: str, parse: Callable[[Any], T]) -> T:
    """Read a JSON file, and parse its value; raise ConfigurationError with its path if that fails."""
    try:
        return parse(msgspec.json.decode(Path(path).read_bytes()))
    except OSError as error:
        remedy = 'name JSON files with schemas = ["FILE", …] and rules = "FILE" in [gateways.NAME]'
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}; {remedy}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    except (SchemaError, ValidationError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
