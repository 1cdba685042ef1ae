"""What a connector type is, and the configuration of one connector of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from lakesync.connectors.source import Source
from lakesync.exceptions import ConfigurationError
from lakesync.handlers import ActionDescriptor, ActionHandler
from lakesync.schema import TableSchema

SECRET = "writeOnly"  # noqa: S105 the name of a JSON Schema keyword
"""A field of a configuration schema with this keyword is a secret: never returned, never logged, sealed at rest."""

SERVER_FILE = "server-file"
"""The `format` of a field that names a file of the server: it is used only where `file:PATH` would be followed."""


class ConnectorDescriptor(msgspec.Struct, frozen=True, rename="camel"):
    """All that a form for a new connector of this type needs."""

    type: str
    display_name: str
    description: str
    category: Literal["database", "api"]
    config_schema: dict[str, Any]
    """JSON Schema of the settings under the key that is the type's name."""
    ingest_schema: dict[str, Any]
    """JSON Schema of `ingest`."""
    output_tables: tuple[TableSchema, ...] | None = None
    """The tables that it fills; None where the ingest names them."""

    @property
    def secrets(self) -> frozenset[str]:
        """The settings that are secret."""
        fields: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in fields.items() if schema.get(SECRET))

    @property
    def files(self) -> frozenset[str]:
        """The settings that name a file of the server."""
        fields: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in fields.items() if schema.get("format") == SERVER_FILE)


@dataclass(frozen=True)
class ConnectorConfig:
    """A connector as its code gets it, secrets in plain text; its `repr` shows none of them."""

    gateway: str
    name: str
    type: str
    settings: Mapping[str, Any] = field(repr=False)
    ingest: Mapping[str, Any] | None = None


def _none(config: ConnectorConfig) -> ActionHandler:
    raise ConfigurationError(f"connectors of type {config.type!r} do no actions")


def _no_source(config: ConnectorConfig) -> Source:
    raise ConfigurationError(f"connectors of type {config.type!r} are not polled")


@dataclass(frozen=True)
class ConnectorType:
    """A type of connector. One is found by an entry point of the group `lakesync.connectors` that names it."""

    descriptor: ConnectorDescriptor
    actions: tuple[ActionDescriptor, ...] = ()
    """What its connectors do."""
    make_handler: Callable[[ConnectorConfig], ActionHandler] = _none
    """Called for each action, so it is quick and opens nothing that is not closed."""
    open_source: Callable[[ConnectorConfig], Source] = _no_source
    """Called for each poll, which closes it."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """By output table, the setting by which it is not polled."""

    def polled(self, settings: Mapping[str, Any], ingest: Mapping[str, Any] | None) -> tuple[str, ...]:
        """The tables that a connector's polls fill, by its settings alone; none where it is not polled."""
        if ingest is None:
            return ()
        if self.descriptor.output_tables is None:
            return tuple(each["table"] for each in ingest.get("tables", ()))
        named = [schema.table for schema in self.descriptor.output_tables]
        return tuple(name for name in named if settings.get(self.switches.get(name, ""), True))
