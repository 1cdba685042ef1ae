"""LakeSync: offline-first data sync with an Iceberg lakehouse behind it.

Names are loaded when they are first used, so that an app that only opens its database does not wait for the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakesync import client
    from lakesync.client.factory import open_client as open  # noqa: A004 as in gzip.open
    from lakesync.engine import Engine, SyncGateway, open_gateway
    from lakesync.flush import AdaptiveBuffer, FlushSettings
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
    "AdaptiveBuffer",
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
    "lakesync.flush": ("AdaptiveBuffer", "FlushSettings"),
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
