"""The sync engine: everything that a gateway does, without HTTP and without Spark."""

from lakesync.engine.engine import Engine
from lakesync.engine.gateway import GatewayStats, SyncGateway
from lakesync.engine.limits import EngineLimits
from lakesync.engine.opening import open_gateway

__all__ = ["Engine", "EngineLimits", "GatewayStats", "SyncGateway", "open_gateway"]
