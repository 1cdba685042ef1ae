"""Connectors: external systems that are polled for rows or execute actions, registered at run time."""

from lakesync.connectors.base import ConnectorConfig, ConnectorType
from lakesync.connectors.registry import Connectors
from lakesync.connectors.secrets import Secrets
from lakesync.model.action_handlers import ConnectorDescriptor

__all__ = ["ConnectorConfig", "ConnectorDescriptor", "ConnectorType", "Connectors", "Secrets"]
