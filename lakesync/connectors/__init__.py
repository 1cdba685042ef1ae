"""Connectors: external systems, such as Jira or a database, that are polled for rows or execute actions of clients.

A gateway's admins register them while the server runs. This module exports what the gateway server, the pipeline, and
packages with connector types of their own import.
"""

from lakesync.connectors.base import ConnectorConfig, ConnectorType
from lakesync.connectors.registry import Connectors
from lakesync.connectors.secrets import Secrets
from lakesync.model.action_handlers import ConnectorDescriptor

__all__ = ["ConnectorConfig", "ConnectorDescriptor", "ConnectorType", "Connectors", "Secrets"]
