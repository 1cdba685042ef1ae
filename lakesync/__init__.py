"""LakeSync: offline-first data sync with an Iceberg lakehouse behind it."""

from lakesync.delta import delta_id, extract_delta, jcs
from lakesync.engine import Engine, SyncGateway, open_gateway
from lakesync.exceptions import LakeSyncError, TerminalError, TransientError
from lakesync.flush import AdaptiveBuffer, FlushSettings
from lakesync.hlc import HLC
from lakesync.rules.model import SyncRules, parse_rules
from lakesync.schema import TableSchema, parse_schema
from lakesync.types import (
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
    "delta_id",
    "extract_delta",
    "jcs",
    "open_gateway",
    "parse_rules",
    "parse_schema",
]
