"""The client: an app's rows in its own database, kept in step with a gateway. `lakesync.open` is the way in.

Names are loaded when they are first used: HTTP and WebSocket libraries only by who talks over them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakesync.client.actions import ActionQueue, QueuedAction
    from lakesync.client.aio import AsyncClient, AsyncTable, open_async
    from lakesync.client.checkpoint import Progress
    from lakesync.client.client import Client
    from lakesync.client.coordinator import SyncCoordinator
    from lakesync.client.core import CoreLimits, Edit, Mode, RetryPolicy
    from lakesync.client.database import LocalDB
    from lakesync.client.errors import DbError, TableError, UnreachableError
    from lakesync.client.events import Event
    from lakesync.client.history import Version
    from lakesync.client.opening import create_client, open_client
    from lakesync.client.outbox import Outbox
    from lakesync.client.queues import MemoryQueue, QueueEntry, SyncQueue
    from lakesync.client.schema_sync import SchemaSynchroniser
    from lakesync.client.status import SyncReport, SyncStatus
    from lakesync.client.table import Row, Table
    from lakesync.client.tracker import SyncTracker
    from lakesync.client.transports.base import (
        ActionTransport,
        CheckpointTransport,
        ConnectorTypesTransport,
        RealtimeTransport,
        SchemaTransport,
        SyncTransport,
        Token,
    )
    from lakesync.client.transports.http import HttpTransport
    from lakesync.client.transports.local import LocalTransport
    from lakesync.client.transports.websocket import WebSocketTransport
    from lakesync.client.verify import TableCheck
    from lakesync.client.watching import Watch

_PLACES = {
    "actions": ("ActionQueue", "QueuedAction"),
    "aio": ("AsyncClient", "AsyncTable", "open_async"),
    "checkpoint": ("Progress",),
    "client": ("Client",),
    "coordinator": ("SyncCoordinator",),
    "core": ("CoreLimits", "Edit", "Mode", "RetryPolicy"),
    "database": ("LocalDB",),
    "errors": ("DbError", "TableError", "UnreachableError"),
    "events": ("Event",),
    "history": ("Version",),
    "opening": ("create_client", "open_client"),
    "outbox": ("Outbox",),
    "queues": ("MemoryQueue", "QueueEntry", "SyncQueue"),
    "schema_sync": ("SchemaSynchroniser",),
    "status": ("SyncReport", "SyncStatus"),
    "table": ("Row", "Table"),
    "tracker": ("SyncTracker",),
    "transports.base": (
        "ActionTransport",
        "CheckpointTransport",
        "ConnectorTypesTransport",
        "RealtimeTransport",
        "SchemaTransport",
        "SyncTransport",
        "Token",
    ),
    "transports.http": ("HttpTransport",),
    "transports.local": ("LocalTransport",),
    "transports.websocket": ("WebSocketTransport",),
    "verify": ("TableCheck",),
    "watching": ("Watch",),
}
_HOMES = {name: f"{__name__}.{place}" for place, names in _PLACES.items() for name in names}

__all__ = [
    "ActionQueue",
    "ActionTransport",
    "AsyncClient",
    "AsyncTable",
    "CheckpointTransport",
    "Client",
    "ConnectorTypesTransport",
    "CoreLimits",
    "DbError",
    "Edit",
    "Event",
    "HttpTransport",
    "LocalDB",
    "LocalTransport",
    "MemoryQueue",
    "Mode",
    "Outbox",
    "Progress",
    "QueueEntry",
    "QueuedAction",
    "RealtimeTransport",
    "RetryPolicy",
    "Row",
    "SchemaSynchroniser",
    "SchemaTransport",
    "SyncCoordinator",
    "SyncQueue",
    "SyncReport",
    "SyncStatus",
    "SyncTracker",
    "SyncTransport",
    "Table",
    "TableCheck",
    "TableError",
    "Token",
    "UnreachableError",
    "Version",
    "Watch",
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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
