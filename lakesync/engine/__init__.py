"""The sync engine: everything that a gateway does, without HTTP and without Spark.

A *gateway* is one app's stream of changes. `Engine` has all gateways of one staging store (the database that pushes are
committed to), and `SyncGateway` the operations of one gateway. The gateway server calls them; `open_gateway` runs a
gateway inside an application.
"""

from lakesync.engine.adapter_gateway import GatewayStats
from lakesync.engine.checks import EngineLimits
from lakesync.engine.engine import Engine
from lakesync.engine.gateway import SyncGateway
from lakesync.engine.standalone_engine import open_gateway

__all__ = ["Engine", "EngineLimits", "GatewayStats", "SyncGateway", "open_gateway"]
