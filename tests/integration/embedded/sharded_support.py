"""A gateway over two shards in the app's process, and pushes to both."""

from __future__ import annotations

from pathlib import Path

from lakesync.engine import Engine
from lakesync.flush import Outlet
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, RowDelta, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_staging
from lakesync.staging.shards import ShardMap

START = 1_700_000_000_000
SHARDS = ShardMap({"orders": "shard-orders"}, "shard-default")
RULES = parse_rules(
    {"version": 1, "buckets": [{"name": "b", "tables": [], "filters": [{"column": "n", "op": "eq", "value": "1"}]}]}
)


def wall() -> int:
    return START


def opened(folder: Path, outlet: Outlet | None = None, shards: ShardMap = SHARDS) -> Engine:
    engine = Engine(open_staging(f"sqlite://{folder}", shards, wall), wall, outlet=outlet)
    engine.open()
    return engine


def delta(table: str, row: int, client: str = "alice") -> RowDelta:
    cells = (ColumnValue.of("n", row),)
    hlc = (START << 16) + row
    identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=str(row), columns=cells)
    return RowDelta("INSERT", table, str(row), client, cells, hlc, identity)


def both(row: int, client: str = "alice") -> SyncPush:
    return SyncPush(client, (delta("orders", row, client), delta("todos", row, client)))
