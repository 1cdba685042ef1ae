"""What the parts of `SyncGateway` have in common: the gateway's id, store, limits and rules, and what gateways share.

A *gateway* is one app's stream of changes. The *staging store* is the database that pushes are committed to. *Sync
rules* decide which rows a client sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lakesync.actions import ActionRunner
from lakesync.connectors import Connectors
from lakesync.engine.active_rules import RulesCache
from lakesync.engine.checks import EngineLimits
from lakesync.engine.inspection.rejections import RejectionLog
from lakesync.engine.names import Names
from lakesync.flush import Outlet
from lakesync.staging.store import StagingStore


class SharedParts(NamedTuple):
    """What the gateways of an engine share."""

    wall: Callable[[], int]
    """Returns the server's wall time in milliseconds since 1970."""
    connectors: Connectors
    """The connector types, and the keys that encrypt their secrets."""
    runner: ActionRunner
    """Executes actions in its threads."""
    outlet: Outlet | None
    """The adapter that the gateways flush to; None if the data pipeline flushes, or nothing does."""
    names: Names
    """Rejects table and column names that differ from used ones only in case."""
    rejections: RejectionLog
    """The latest rejected delta of each row."""


class GatewayBase:
    """The base class of the parts of `SyncGateway`; it is never used alone."""

    def __init__(self, gateway_id: str, store: StagingStore, limits: EngineLimits, shared: SharedParts) -> None:
        """Create the gateway without reading the store; `Engine` calls this.

        Args:
            gateway_id: the gateway's id.
            store: the open staging store that contains the gateway.
            limits: limits of requests and of the backlog.
            shared: what the gateways of an engine share.
        """
        self.gateway_id = gateway_id
        self.rules = RulesCache()
        """Returns the active sync rules, compiled."""
        self.names = shared.names
        self.rejections = shared.rejections
        self._store = store
        self._limits = limits
        self._wall = shared.wall
