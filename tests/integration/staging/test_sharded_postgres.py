"""The engines of two gateway processes over two Postgres databases, one for each shard."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from lakesync.adapters import open_adapter
from lakesync.engine import Engine
from lakesync.flush import Outlet
from lakesync.model.errors import ConfigurationError
from lakesync.model.types import RowDelta, SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_staging
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.shards import ShardMap
from lakesync.testing import ManualClock
from tests.integration.gateway_support import delta, until, wall_ms
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
        operations = [(each.op, each.table, each.row_id) for each in (*first.deltas, *rest.deltas)]
        assert sorted(operations) == [("INSERT", table, str(row)) for table in ("orders", "todos") for row in range(5)]
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


def test_a_source_returns_rows_of_a_commit_that_had_an_arrival_and_had_not_ended(postgres_uri, tmp_path, monkeypatch):
    server, clock = postgres_uri.rpartition("/")[0], ManualClock(wall_ms())
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        for name in ("sharded_slow_main", "sharded_slow_orders"):
            connection.execute(f"CREATE DATABASE {name}")
    shards = ShardMap({"orders": "shard-orders"}, "shard-default", {"shard-orders": f"{server}/sharded_slow_orders"})
    adapter = open_adapter(f"sqlite://{tmp_path / 'kept.db'}")
    slow, third, other = engines = [
        Engine(open_staging(f"{server}/sharded_slow_main", shards, clock), clock, outlet=Outlet(adapter))
        for _ in range(3)
    ]
    for engine in engines:
        engine.open()
    gateway = other.gateway("g")
    gateway.register_source("kept", adapter, gateway="g")
    orders = decoded([delta("1", {"n": 1}, client="alice", table="orders")])
    todos = decoded([delta("1", {"n": 1}, client="carol", table="todos")])
    gateway.handle_push(SyncPush("alice", both(0)))
    gateway.flush()
    cursor = gateway.handle_pull(SyncPull("bob", 0)).server_hlc
    has_arrival, go_on = threading.Event(), threading.Event()
    assert isinstance(slow.store, ShardedStore)
    store = slow.store.stores["shard-orders"]
    submit = store.submit

    def submit_slowly(gateway_id, job):
        def run(commit):
            before = commit.arrival
            result = job(commit)
            if commit.arrival > before:
                has_arrival.set()
                assert go_on.wait(120)
            return result

        return submit(gateway_id, run)

    def waiting_for_a_lock():
        with psycopg.connect(postgres_uri) as connection:
            query = "SELECT 1 FROM pg_stat_activity WHERE datname = 'sharded_slow_orders' AND wait_event_type = 'Lock'"
            return len(connection.execute(query).fetchall())

    def pull():
        nonlocal cursor
        page = gateway.handle_pull(SyncPull("bob", cursor, source="kept"))
        cursor = page.server_hlc
        return [(each.table, each.row_id) for each in page.deltas if each.op == "INSERT"]

    monkeypatch.setattr(store, "submit", submit_slowly)
    with ThreadPoolExecutor(3) as threads:
        pushed = threads.submit(slow.gateway("g").handle_push, SyncPush("alice", orders))
        assert has_arrival.wait(120)
        clock.advance(1)
        # stores its delta, then waits for the other shard, whose cursor its answer needs
        stored = threads.submit(third.gateway("g").handle_push, SyncPush("carol", todos))
        until(lambda: stored.done() or waiting_for_a_lock() == 1, "the push to be stored")
        gateway.flush()
        clock.advance(1)
        pulled = threads.submit(pull)
        until(lambda: pulled.done() or waiting_for_a_lock() == 2, "the pull to wait for the commit")
        go_on.set()
        received = pulled.result()
        pushed.result()
        stored.result()
    gateway.flush()
    received += pull() + pull()
    assert sorted(received) == [(table, row) for table in ("orders", "todos") for row in ("0", "1")]
    for engine in engines:
        engine.close()
    adapter.close()


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
