"""Two gateway processes' worth of engines over two Postgres databases, one for each shard."""

import psycopg
import pytest

from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError
from lakesync.model.types import RowDelta, SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_staging
from lakesync.staging.shards import ShardMap
from tests.integration.gateway_support import delta, wall_ms
from tests.integration.live.live_support import decoded

RULES = parse_rules(
    {"version": 1, "buckets": [{"name": "b", "tables": [], "filters": [{"column": "n", "op": "eq", "value": "1"}]}]}
)


def both(row: int) -> tuple[RowDelta, ...]:
    return decoded([delta(str(row), {"n": row}, client="alice", table=table) for table in ("orders", "todos")])


def test_shards_on_two_databases_are_one_gateway_to_every_process(postgres_uri):
    server = postgres_uri.rpartition("/")[0]
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        for name in ("sharded_main", "sharded_orders"):
            connection.execute(f"CREATE DATABASE {name}")
    shards = ShardMap({"orders": "shard-orders"}, "shard-default", {"shard-orders": f"{server}/sharded_orders"})
    engines = [Engine(open_staging(f"{server}/sharded_main", shards, wall_ms), wall_ms) for _ in range(2)]
    for engine in engines:
        engine.open()
    try:
        one, other = (engine.gateway("g") for engine in engines)
        for row in range(5):
            (one if row % 2 else other).handle_push(SyncPush("alice", both(row)))
        first = other.handle_pull(SyncPull("bob", 0, 4))
        rest = one.handle_pull(SyncPull("bob", first.server_hlc, 100))
        told = [(each.op, each.table, each.row_id) for each in (*first.deltas, *rest.deltas)]
        assert sorted(told) == [("INSERT", table, str(row)) for table in ("orders", "todos") for row in range(5)]
        assert (first.has_more, rest.has_more) == (True, False)
        one.set_rules(RULES)
        gone = other.handle_pull(SyncPull("bob", rest.server_hlc))
        assert sorted((each.op, each.table, each.row_id) for each in gone.deltas) == [
            ("DELETE", table, str(row)) for table in ("orders", "todos") for row in (0, 2, 3, 4)
        ]
        waiting = {each.shard: each.deltas for each in engines[1].store.backlog()}
        assert waiting == {"shard-default": 5, "shard-orders": 5}
    finally:
        for engine in engines:
            engine.close()


def test_two_shards_with_one_database_are_rejected_also_if_its_urls_differ(postgres_uri):
    server = postgres_uri.rpartition("/")[0]
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        connection.execute("CREATE DATABASE sharded_twice")
    url = f"{server}/sharded_twice"
    shards = ShardMap({"orders": "shard-orders"}, "shard-default", {"shard-orders": f"{url}?application_name=orders"})
    engine = Engine(open_staging(url, shards, wall_ms), wall_ms)
    engine.open()
    try:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="give each shard a database of its own"):
                engine.gateway("g").handle_push(SyncPush("alice", both(1)))
    finally:
        engine.close()
    with pytest.raises(ConfigurationError, match="give each shard the store that it had"):
        Engine(open_staging(url, shards, wall_ms), wall_ms).open()
