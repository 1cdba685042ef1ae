"""Connectors: sources and targets outside, registered at run time."""

from lakesync.connectors.base import ConnectorConfig, ConnectorDescriptor, ConnectorType
from lakesync.connectors.registry import Connectors
from lakesync.connectors.secrets import Secrets

__all__ = ["ConnectorConfig", "ConnectorDescriptor", "ConnectorType", "Connectors", "Secrets"]
