"""What a connector type is, and the configuration of one connector of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakesync.connectors.hosts import HostPolicy
from lakesync.connectors.source import Source
from lakesync.model.action_handlers import ActionDescriptor, ActionHandler, ConnectorDescriptor
from lakesync.model.errors import ConfigurationError


@dataclass(frozen=True)
class ConnectorConfig:
    """A connector as its code gets it, secrets in plain text; its `repr` shows none of them."""

    gateway: str
    name: str
    type: str
    settings: Mapping[str, Any] = field(repr=False)
    ingest: Mapping[str, Any] | None = None
    hosts: HostPolicy = field(default_factory=HostPolicy)
    """The hosts that the server's connectors may call."""
    own_identity: bool = False
    """Whether the connector may use the identity that the server itself has at a cloud."""


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
