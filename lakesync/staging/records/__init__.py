"""The values that a staging store keeps. Engine, feed and pipeline read and write them."""

from lakesync.staging.records.clients import LOST, ActionEntry, ActionRecord, ClientRecord, Page, PastKey, Scope
from lakesync.staging.records.configuration import GatewayConfig, Reindex, SchemaVersion, WriteScope
from lakesync.staging.records.log import (
    ARRIVAL_STEP,
    Backlog,
    Batch,
    Cut,
    CutTable,
    Erasure,
    HeldShard,
    Hold,
    LedgerDay,
    LogEntry,
    LogSource,
)
from lakesync.staging.records.rows import DELETED, Entry, Move, MoveKind, StoredRow, Writer, decode_row, encode_row

__all__ = [
    "ARRIVAL_STEP",
    "DELETED",
    "LOST",
    "ActionEntry",
    "ActionRecord",
    "Backlog",
    "Batch",
    "ClientRecord",
    "Cut",
    "CutTable",
    "Entry",
    "Erasure",
    "GatewayConfig",
    "HeldShard",
    "Hold",
    "LedgerDay",
    "LogEntry",
    "LogSource",
    "Move",
    "MoveKind",
    "Page",
    "PastKey",
    "Reindex",
    "SchemaVersion",
    "Scope",
    "StoredRow",
    "WriteScope",
    "Writer",
    "decode_row",
    "encode_row",
]
