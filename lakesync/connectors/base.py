"""`ConnectorType`, which a package implements to add a type of connector, and the configuration of one connector.

A connector connects a gateway with an external system, such as Jira or a database. Polls of it bring rows into the
gateway; actions let clients do something at it, such as creating an issue. `lakesync.connectors.registry` uses types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.source import Source
from lakesync.model.action_handlers import ActionDescriptor, ActionHandler, ConnectorDescriptor
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import Column, TableSchema


@dataclass(frozen=True)
class ConnectorConfig:
    """A connector's configuration with secrets in plain text. Its `repr` does not show them."""

    gateway: str
    """The id of the gateway that it belongs to."""
    name: str
    type: str
    settings: Mapping[str, Any] = field(repr=False)
    """As the type's `config_schema` describes."""
    ingest: Mapping[str, Any] | None = None
    """As the type's `ingest_schema` describes; None if the connector is not polled."""
    hosts: HostPolicy = field(default_factory=HostPolicy)
    """The hosts that connectors of this server may call."""
    own_identity: bool = False
    """Whether the connector may use the server's own cloud identity."""


def _no_handler(config: ConnectorConfig) -> ActionHandler:
    """Raise ConfigurationError; the default for a type without actions."""
    raise ConfigurationError(f"connectors of type {config.type!r} support no actions")


def _no_source(config: ConnectorConfig) -> Source:
    """Raise ConfigurationError; the default for a type that is not polled."""
    raise ConfigurationError(f"connectors of type {config.type!r} are not polled")


@dataclass(frozen=True)
class ConnectorType:
    """A type of connector. Packages add types with entry points of the group `lakesync.connectors`."""

    descriptor: ConnectorDescriptor
    actions: tuple[ActionDescriptor, ...] = ()
    """The actions that its connectors support."""
    make_handler: Callable[[ConnectorConfig], ActionHandler] = _no_handler
    """Returns the handler that executes an action. It is called for each action, so it must be fast, and must not leave
    connections open."""
    open_source: Callable[[ConnectorConfig], Source] = _no_source
    """Returns the source that a poll reads. It is called for each poll, which closes the source."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Output table → the boolean setting that turns its polling off."""

    def polled(self, settings: Mapping[str, Any], ingest: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Return the tables that a connector's polls fill, according to its settings; empty if it is not polled.

        Args:
            settings: the connector's settings.
            ingest: its `ingest` settings; None if it is not polled.
        """
        if ingest is None:
            return ()
        if self.descriptor.output_tables is None:
            return tuple(each["table"] for each in ingest.get("tables", ()))
        tables = [schema.table for schema in self.descriptor.output_tables]
        return tuple(table for table in tables if settings.get(self.switches.get(table, ""), True))


def text_table(name: str, columns: str, **references: str) -> TableSchema:
    """Return a schema whose columns are all strings.

    Args:
        name: the table.
        columns: column names separated by spaces.
        references: column → the `TABLE.COLUMN` that it references.
    """
    return TableSchema(name, tuple(Column(each, "string", references.get(each)) for each in columns.split()))
