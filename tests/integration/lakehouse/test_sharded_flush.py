"""The deltas of every shard are flushed to one lake; each table is merged up to the flush of its own shard."""

import pytest

from lakehouse.checkpoints.publication import make_checkpoints
from lakehouse.checks import duplicate_deltas, history_faults
from lakehouse.erasure.requests import complete_erasures, open_requests
from lakehouse.history.flush import flush_backlog
from lakehouse.sessions import session
from lakehouse.table_definitions import LakeNames
from lakesync.config.sections import ShardConfig
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.staging.shards import shard_map
from tests.integration.gateway_support import reached_at, wall_ms
from tests.run_support import a_run

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

SHARDS = ShardConfig(shards={"orders": "shard-orders"}, default="shard-default")


def delta(table, row, client="alice", value=None, ahead_ms=0):
    cells = (ColumnValue.of("n", row if value is None else value),)
    hlc = (wall_ms() + ahead_ms << 16) + row
    identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=str(row), columns=cells)
    return RowDelta("INSERT", table, str(row), client, cells, hlc, identity)


def checkpoints(run, config):
    return make_checkpoints(
        run.pyspark.spark_session, run.staging.store, run.run_state, config, run.lake.checkpoints_uri
    )


def test_the_deltas_of_every_shard_are_in_the_lake_once(spark_server, serve, tmp_path):
    lake = {"system_namespace": "sys_sharded", "namespace": "tab_sharded", "checkpoints": str(tmp_path / "frames")}
    served = serve(shards=shard_map(SHARDS))
    engine = served.engine
    config = reached_at(served, spark_server["config"]).replace(lake=lake, shard_config=SHARDS)
    names = LakeNames(config.lake.catalog, config.lake.system_namespace, config.lake.namespace)
    gateway = engine.gateway("sharded")
    pushed = [delta(table, row) for row in range(6) for table in ("orders", "todos")]
    gateway.handle_push(SyncPush("alice", tuple(pushed)))
    with session(config) as spark:
        flush_backlog(spark, engine.store, names=names)
        gateway.handle_push(SyncPush("alice", (delta("orders", 7),)))
        late = gateway.handle_push(SyncPush("alice", (delta("todos", 7),)))
        assert late.accepted == 1
        arrivals = {waiting.shard: waiting.last_arrival for waiting in engine.store.backlog()}
        orders = [waiting for waiting in engine.store.backlog() if waiting.shard == "shard-orders"]
        before = orders[0].flushed_seq
        todos = engine.store.plan("sharded", "shard-default", 100)
        assert todos is not None
        rows = spark.table(names.deltas).toArrow().to_pylist()
        assert sorted(row["delta_id"] for row in rows) == sorted(each.delta_id for each in pushed)
        assert {(row["table_name"], row["shard"]) for row in rows} == {
            ("orders", "shard-orders"),
            ("todos", "shard-default"),
        }
        assert duplicate_deltas(spark, names) == []
        flush_backlog(spark, engine.store, names=names)
        assert history_faults(spark, engine.store, names).differences == []
        flushed = {waiting.shard: waiting for waiting in engine.store.backlog()}
        assert {waiting.deltas for waiting in flushed.values()} == {0}
        assert flushed["shard-orders"].flushed_seq == before + 1
    with a_run(config, engine.store) as run:
        assert run.run_state.flushed_of("orders") == {"sharded": arrivals["shard-orders"]}
        assert run.run_state.flushed_of("todos") == {"sharded": arrivals["shard-default"]}
        (checkpoint,) = checkpoints(run, config)
    assert {part.table: part.rows for part in checkpoint.tables} == {"orders": 7, "todos": 7}
    assert {store.newest_checkpoint("sharded").arrival for store in engine.store.stores.values()} == {
        checkpoint.arrival
    }
    bob = {"sub": "bob"}
    checkpoint = gateway.submit_checkpoint("bob", bob).result()
    assert [part.table for part in checkpoint.tables] == ["todos", "orders"]
    gateway.handle_push(SyncPush("alice", (delta("orders", 8),)))
    page = gateway.handle_pull(SyncPull("bob", checkpoint.arrival, 100), bob)
    assert [(each.op, each.row_id) for each in page.deltas] == [("INSERT", "8")]
    erase_alice(engine, gateway, config, names)


def erase_alice(engine, gateway, config, names):
    """B7: a request for each shard, executed on the shard's tables; no file of either shard has her data."""
    for client, value in (("carol", 1), ("alice", 2)):
        rows = [delta(table, 9, client, value) for table in ("orders", "todos")]
        gateway.handle_push(SyncPush(client, tuple(rows)))
    with a_run(config, engine.store) as run:
        spark = run.pyspark.spark_session
        flush_backlog(spark, engine.store, names=names)
        checkpoints(run, config)
        engine.store.erase_client("sharded", "alice")
        flush_backlog(spark, engine.store, names=names)
        requests = open_requests(engine.store)["sharded"]
        assert sorted(each.shards for each in requests) == [("shard-default", "main"), ("shard-orders",)]
        ended = complete_erasures(spark, engine.store, requests, names, run.lake.checkpoints_uri, run.staging.opener)
        assert (len(ended.proven), ended.left) == (2, ())
        assert open_requests(engine.store) == {}
        run.run_state.forget_positions()
        (checkpoint,) = checkpoints(run, config)
    assert checkpoint.arrival > max(each.arrival for each in engine.store.erasures("sharded"))
    # all newest values of every row were hers, so the rows are deleted for everyone
    assert {part.table: part.rows for part in checkpoint.tables} == {"orders": 0, "todos": 0}
    served = gateway.submit_checkpoint("dora", {"sub": "dora"}).result()
    assert served.created_ms == checkpoint.created_ms  # its cursor is a time of the clock, which may be set back
    assert gateway.handle_pull(SyncPull("erin", 0, 100), {"sub": "erin"}).deltas == ()
    erase_ben(engine, gateway, config, names)


def erase_ben(engine, gateway, config, names):
    """B7: a request in one shard does not cover later writes of the client to another shard's table."""
    gateway.handle_push(SyncPush("ben", (delta("orders", 10, "ben", ahead_ms=4000), delta("todos", 10, "ben"))))
    engine.store.erase_client("sharded", "ben")
    default, orders = open_requests(engine.store)["sharded"]
    between = delta("todos", 11, "ben", ahead_ms=2000)
    assert default.hlc < between.hlc < orders.hlc
    gateway.handle_push(SyncPush("ben", (between,)))
    with a_run(config, engine.store) as run:
        spark = run.pyspark.spark_session
        flush_backlog(spark, engine.store, names=names)
        checkpoints(run, config)
        requests = open_requests(engine.store)["sharded"]
        ended = complete_erasures(spark, engine.store, requests, names, run.lake.checkpoints_uri, run.staging.opener)
    assert (len(ended.proven), ended.left) == (2, ())
    deltas = gateway.handle_pull(SyncPull("fay", 0, 100), {"sub": "fay"}).deltas
    assert [(each.table, each.row_id) for each in deltas] == [("todos", "11")]
