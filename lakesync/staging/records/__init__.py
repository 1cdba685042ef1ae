"""The values that a staging store contains. A staging store is the database that clients' pushes are committed to.

The engine, the feed and the data pipeline read and write these values through the protocols of `staging.store`.
`clients` has records of clients and actions, `configuration` schemas and rules, `log` log rows, batches and
checkpoints, `rows` merged rows and feed entries.
"""

from lakesync.staging.records.clients import (
    KEY_OF_DELETES,
    LOST,
    MORE_SENT,
    NO_BASE,
    NO_CURSOR,
    ActionEntry,
    ActionRecord,
    ClientRecord,
    Page,
    PastKey,
    Range,
    Scope,
    pages_in_doubt,
)
from lakesync.staging.records.configuration import GatewayConfig, Reindex, SchemaVersion, WriteScope
from lakesync.staging.records.log import (
    ARRIVAL_STEP,
    Backlog,
    Batch,
    Checkpoint,
    CheckpointTable,
    CutPoint,
    Erasure,
    LedgerDay,
    LogEntry,
    LogSource,
    ShardCutPoint,
)
from lakesync.staging.records.rows import DELETED, Entry, Move, MoveKind, StoredRow, Writer, decode_row, encode_row

__all__ = [
    "ARRIVAL_STEP",
    "DELETED",
    "KEY_OF_DELETES",
    "LOST",
    "MORE_SENT",
    "NO_BASE",
    "NO_CURSOR",
    "ActionEntry",
    "ActionRecord",
    "Backlog",
    "Batch",
    "Checkpoint",
    "CheckpointTable",
    "ClientRecord",
    "CutPoint",
    "Entry",
    "Erasure",
    "GatewayConfig",
    "LedgerDay",
    "LogEntry",
    "LogSource",
    "Move",
    "MoveKind",
    "Page",
    "PastKey",
    "Range",
    "Reindex",
    "SchemaVersion",
    "Scope",
    "ShardCutPoint",
    "StoredRow",
    "WriteScope",
    "Writer",
    "decode_row",
    "encode_row",
    "pages_in_doubt",
]
