"""The client: an app's SQLite database that is synchronised with a gateway. `lakesync.open` opens it.

A gateway is one app's stream of changes on the server; all clients of the app share it. Subpackages: `core` is the
state machine without I/O, `sqlite` reads and writes the app's file, `sync` runs the synchronisation, and `transports`
sends requests to the gateway. The names below are imported when they are first used, so that an app without a
WebSocket, for example, does not import the WebSocket library.

- `open_client` (`lakesync.open`) returns a `Client`, `open_async` an `AsyncClient`. `create_client`, `LocalDB`,
  `SyncTracker`, `SyncCoordinator` and `SchemaSynchroniser` have the names of the reference, the TypeScript client.
- `Table`, `Row` and `Watch` are the app's data. `Version`, `SyncReport`, `SyncStatus`, `Progress` and `TableCheck`
  (checksums of a table before and after `verify`) are what methods and the listeners of an `Event` return or get.
- `Edit` is a change that the gateway has not acknowledged; `Outbox` has all of them, and `ActionQueue` the app's
  `QueuedAction`s: requests that the gateway executes in external systems. `SyncQueue` is the protocol of an app's own
  queue of changes, which `MemoryQueue` with its `QueueEntry`s implements.
- `HttpTransport`, `WebSocketTransport` and `LocalTransport` send requests. The other names with `Transport` are
  protocols for what a transport can do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakesync.client.async_client import AsyncClient, AsyncTable, open_async
    from lakesync.client.client import Client
    from lakesync.client.core import CoreLimits, Edit, Mode, RetryPolicy
    from lakesync.client.errors import DbError, TableError, UnreachableError
    from lakesync.client.factory import create_client, open_client
    from lakesync.client.queries import Watch
    from lakesync.client.queues import MemoryQueue, QueueEntry, SyncQueue
    from lakesync.client.sqlite.database import LocalDB
    from lakesync.client.sqlite.tables import Row, SyncTracker, Table
    from lakesync.client.status import Event, Progress, SyncReport, SyncStatus, TableCheck, Version
    from lakesync.client.sync.action_queue import ActionQueue, QueuedAction
    from lakesync.client.sync.coordinator import SyncCoordinator
    from lakesync.client.sync.outbox import Outbox
    from lakesync.client.sync.schema_synchroniser import SchemaSynchroniser
    from lakesync.client.transports.base import (
        ActionTransport,
        CheckpointTransport,
        ConnectorTypesTransport,
        LocalTransport,
        RealtimeTransport,
        SchemaTransport,
        SyncTransport,
    )
    from lakesync.client.transports.http import HttpTransport
    from lakesync.client.transports.tokens import Token
    from lakesync.client.transports.websocket import WebSocketTransport

_MODULES = {
    "async_client": ("AsyncClient", "AsyncTable", "open_async"),
    "client": ("Client",),
    "sync.coordinator": ("SyncCoordinator",),
    "core": ("CoreLimits", "Edit", "Mode", "RetryPolicy"),
    "sqlite.database": ("LocalDB",),
    "errors": ("DbError", "TableError", "UnreachableError"),
    "factory": ("create_client", "open_client"),
    "sync.action_queue": ("ActionQueue", "QueuedAction"),
    "sync.outbox": ("Outbox",),
    "queries": ("Watch",),
    "queues": ("MemoryQueue", "QueueEntry", "SyncQueue"),
    "status": ("Event", "Progress", "SyncReport", "SyncStatus", "TableCheck", "Version"),
    "sync.schema_synchroniser": ("SchemaSynchroniser",),
    "sqlite.tables": ("Row", "SyncTracker", "Table"),
    "transports.base": (
        "ActionTransport",
        "CheckpointTransport",
        "ConnectorTypesTransport",
        "LocalTransport",
        "RealtimeTransport",
        "SchemaTransport",
        "SyncTransport",
    ),
    "transports.http": ("HttpTransport",),
    "transports.tokens": ("Token",),
    "transports.websocket": ("WebSocketTransport",),
}
"""Module → the public names that are imported from it when they are first used."""
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

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
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
