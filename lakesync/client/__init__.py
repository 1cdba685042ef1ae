"""The client: an app's rows in its own database, kept in step with a gateway. `lakesync.open` is the way in.

Names are loaded when they are first used: HTTP and WebSocket libraries only by who talks over them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakesync.client.actions import ActionQueue, QueuedAction
    from lakesync.client.aio import AsyncClient, open_async
    from lakesync.client.client import Client
    from lakesync.client.coordinator import SyncCoordinator
    from lakesync.client.database import LocalDB
    from lakesync.client.errors import DbError, TableError, UnreachableError
    from lakesync.client.history import Version
    from lakesync.client.opening import create_client, open_client
    from lakesync.client.schema_sync import SchemaSynchroniser
    from lakesync.client.status import SyncReport, SyncStatus
    from lakesync.client.table import Table
    from lakesync.client.tracker import SyncTracker
    from lakesync.client.transports.http import HttpTransport
    from lakesync.client.transports.local import LocalTransport
    from lakesync.client.transports.websocket import WebSocketTransport

_PLACES = {
    "actions": ("ActionQueue", "QueuedAction"),
    "aio": ("AsyncClient", "open_async"),
    "client": ("Client",),
    "coordinator": ("SyncCoordinator",),
    "database": ("LocalDB",),
    "errors": ("DbError", "TableError", "UnreachableError"),
    "history": ("Version",),
    "opening": ("create_client", "open_client"),
    "schema_sync": ("SchemaSynchroniser",),
    "status": ("SyncReport", "SyncStatus"),
    "table": ("Table",),
    "tracker": ("SyncTracker",),
    "transports.http": ("HttpTransport",),
    "transports.local": ("LocalTransport",),
    "transports.websocket": ("WebSocketTransport",),
}
_HOMES = {name: f"{__name__}.{place}" for place, names in _PLACES.items() for name in names}

__all__ = [
    "ActionQueue",
    "AsyncClient",
    "Client",
    "DbError",
    "HttpTransport",
    "LocalDB",
    "LocalTransport",
    "QueuedAction",
    "SchemaSynchroniser",
    "SyncCoordinator",
    "SyncReport",
    "SyncStatus",
    "SyncTracker",
    "Table",
    "TableError",
    "UnreachableError",
    "Version",
    "WebSocketTransport",
    "create_client",
    "open_async",
    "open_client",
]


def __getattr__(name: str) -> Any:
    place = _HOMES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(place), name)
