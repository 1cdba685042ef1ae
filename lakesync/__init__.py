"""LakeSync: offline-first data sync with an Iceberg lakehouse behind it. These are the names that programs import.

- An app calls `open`, which opens its SQLite database and synchronises it; `client` has the rest of the client.
- A program that embeds a gateway (one app's stream of changes) calls `open_gateway`, which yields a `SyncGateway`. An
  `Engine` opens a store with any number of gateways. `FlushSettings` and `WideRowThreshold` say when a gateway without
  a pipeline copies its changes to a database or an object store.
- `SyncPush`, `SyncPull`, `ActionPush` are requests to a gateway; `PushResult`, `SyncResponse`, `ActionResponse` answer
  them. A `RowDelta` is a change of a row, `HLC` the clock that stamps it.

A name's module is imported when the name is first used, so that an app does not wait for the import of the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakesync import client
    from lakesync.client.factory import open_client as open  # noqa: A004 as in gzip.open
    from lakesync.engine import Engine, SyncGateway, open_gateway
    from lakesync.flush import FlushSettings, WideRowThreshold
    from lakesync.model.delta import delta_id, extract_delta, jcs, make_action
    from lakesync.model.errors import LakeSyncError, TerminalError, TransientError
    from lakesync.model.hlc import HLC
    from lakesync.model.schema import TableSchema, parse_schema
    from lakesync.model.types import (
        Action,
        ActionPush,
        ActionResponse,
        ColumnValue,
        PushResult,
        RowDelta,
        SyncPull,
        SyncPush,
        SyncResponse,
    )
    from lakesync.rules.model import SyncRules, parse_rules

__all__ = [
    "HLC",
    "Action",
    "ActionPush",
    "ActionResponse",
    "ColumnValue",
    "Engine",
    "FlushSettings",
    "LakeSyncError",
    "PushResult",
    "RowDelta",
    "SyncGateway",
    "SyncPull",
    "SyncPush",
    "SyncResponse",
    "SyncRules",
    "TableSchema",
    "TerminalError",
    "TransientError",
    "WideRowThreshold",
    "client",
    "delta_id",
    "extract_delta",
    "jcs",
    "make_action",
    "open",
    "open_gateway",
    "parse_rules",
    "parse_schema",
]

_MODULES = {
    "lakesync.client.factory": ("open",),
    "lakesync.model.delta": ("delta_id", "extract_delta", "jcs", "make_action"),
    "lakesync.engine": ("Engine", "SyncGateway", "open_gateway"),
    "lakesync.model.errors": ("LakeSyncError", "TerminalError", "TransientError"),
    "lakesync.flush": ("FlushSettings", "WideRowThreshold"),
    "lakesync.model.hlc": ("HLC",),
    "lakesync.rules.model": ("SyncRules", "parse_rules"),
    "lakesync.model.schema": ("TableSchema", "parse_schema"),
    "lakesync.model.types": (
        *("Action", "ActionPush", "ActionResponse", "ColumnValue", "PushResult", "RowDelta"),
        *("SyncPull", "SyncPush", "SyncResponse"),
    ),
}
"""Module → the names that are imported from it when they are first used."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_NAME_IN_MODULE = {"open": "open_client"}
"""Names that have another name in their module."""


def __getattr__(name: str) -> Any:
    if name == "client":
        return import_module("lakesync.client")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), _NAME_IN_MODULE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
