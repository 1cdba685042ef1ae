"""A sharded gateway in the app's process: flushes, restores, erasures, and what its shards agree on."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from lakesync.adapters import open_adapter
from lakesync.adapters.deltas import BatchChecksum, DeltaBatch
from lakesync.engine import Engine, EngineLimits
from lakesync.engine.pushing import PushRequest
from lakesync.engine.sharding.shard_gateway import ShardGateway
from lakesync.flush import Outlet
from lakesync.model.delta import delta_id
from lakesync.model.errors import (
    AdapterError,
    BackpressureError,
    ConfigurationError,
    FlushError,
    NotFoundError,
    SchemaError,
    SchemaMismatchError,
    StagingUnavailableError,
)
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.model.validation import MAX_ROW_COLUMNS
from lakesync.rules.model import all_rows_rules
from lakesync.staging import open_staging, open_store
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.shards import ShardMap
from lakesync.testing import ManualClock
from tests.integration.embedded.sharded_support import RULES, SHARDS, START, both, delta, opened, wall


def test_both_shards_are_flushed_to_the_adapter_and_rehydrated_from_it(tmp_path: Path) -> None:
    outlet = Outlet(open_adapter(f"file://{tmp_path / 'kept'}"))
    engine = opened(tmp_path / "one", outlet)
    gateway = engine.gateway("g")
    for row in range(5):
        gateway.handle_push(both(row))
    assert [(each.table, each.delta_count) for each in gateway.table_stats()] == [("orders", 5), ("todos", 5)]
    report = gateway.flush()
    assert (report.deltas, report.batches, gateway.stats().log_size) == (10, 2, 0)
    engine.close()
    engine = opened(tmp_path / "two", outlet)
    try:
        gateway = engine.gateway("g")
        assert gateway.rehydrate() == 10
        assert gateway.stats().log_size == 0, "deltas that the adapter has are not written there again"
        page = gateway.handle_pull(SyncPull("bob", 0))
        assert {each.key for each in page.deltas} == {
            (table, str(n)) for table in ("orders", "todos") for n in range(5)
        }
    finally:
        engine.close()


def test_a_row_that_is_filled_between_the_parts_of_a_push_does_not_reject_the_second_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = tuple(ColumnValue.of(f"c{number}", number) for number in range(MAX_ROW_COLUMNS))
    identity = delta_id(client_id="bob", hlc=START << 16, table="orders", row_id="1", columns=cells)
    full = SyncPush("bob", (RowDelta("INSERT", "orders", "1", "bob", cells, START << 16, identity),))
    with closing(opened(tmp_path)) as engine:
        gateway = engine.gateway("g")
        waiting, pushed = iter([full]), []

        def after_part(_point: str) -> None:
            pushed.extend(gateway.submit_push(partial(PushRequest, each, {"sub": "bob"})) for each in waiting)

        monkeypatch.setattr("lakesync.engine.sharding.pushing.crash_point", after_part)
        assert gateway.handle_push(both(1)).accepted == 2
        assert [each.result().accepted for each in pushed] == [1]
        page = gateway.handle_pull(SyncPull("carol", 0))
        assert sum(len(each.columns) for each in page.deltas if each.table == "orders") == MAX_ROW_COLUMNS + 1


def test_after_a_rehydration_no_shard_sends_a_plain_insert_of_a_row_that_was_not_flushed(tmp_path: Path) -> None:
    outlet = Outlet(open_adapter(f"file://{tmp_path / 'kept'}"))
    lost = SyncPush("alice", (delta("orders", 1),))
    with closing(opened(tmp_path / "one", outlet)) as engine:
        gateway = engine.gateway("g")
        gateway.handle_push(SyncPush("alice", (delta("todos", 1),)))
        gateway.flush()
        gateway.handle_push(lost)
        assert len(gateway.handle_pull(SyncPull("bob", 0)).deltas) == 2
    with closing(opened(tmp_path / "two", outlet)) as engine:
        gateway = engine.gateway("g")
        assert gateway.rehydrate() == 1
        gateway.handle_push(lost)
        page = gateway.handle_pull(SyncPull("bob", 0))
    assert [(each.op, each.table) for each in page.deltas] == [
        (op, table) for table in ("todos", "orders") for op in ("DELETE", "INSERT")
    ]


def test_a_source_returns_rows_of_a_shard_that_was_flushed_after_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START)
    adapter = open_adapter(f"sqlite://{tmp_path / 'kept.db'}")
    outlet = Outlet(adapter)
    engine = Engine(open_staging(f"sqlite://{tmp_path / 'staging'}", SHARDS, clock), clock, outlet=outlet)
    engine.open()
    gateway = engine.gateway("g")
    gateway.register_source("kept", adapter, gateway="g")
    for table in ("orders", "todos"):
        gateway.handle_push(SyncPush("alice", (delta(table, 1),)))
        clock.advance(1)
    cursor = gateway.handle_pull(SyncPull("bob", 0)).server_hlc

    def pull() -> list[tuple[str, str]]:
        nonlocal cursor
        page = gateway.handle_pull(SyncPull("bob", cursor, source="kept"))
        cursor = page.server_hlc
        return [(each.op, each.table) for each in page.deltas]

    def without_orders(batch: DeltaBatch) -> BatchChecksum:
        if any(stored.delta.table == "orders" for stored in batch.deltas):
            raise AdapterError("the connection was lost")
        return insert_deltas(batch)

    insert_deltas = outlet.database.insert_deltas
    with monkeypatch.context() as patched:
        patched.setattr(outlet.database, "insert_deltas", without_orders)
        with pytest.raises(FlushError):
            gateway.flush()
    received = pull()
    gateway.flush()
    received += pull() + pull()
    assert sorted(received) == [("DELETE", "orders"), ("DELETE", "todos"), ("INSERT", "orders"), ("INSERT", "todos")]
    assert pull() == []
    engine.close()
    adapter.close()


def test_a_source_returns_rows_that_a_process_with_a_slow_clock_pushed_later(tmp_path: Path) -> None:
    clock = ManualClock(START)
    adapter = open_adapter(f"sqlite://{tmp_path / 'kept.db'}")
    engine = Engine(open_staging(f"sqlite://{tmp_path / 'staging'}", SHARDS, clock), clock, outlet=Outlet(adapter))
    engine.open()
    gateway = engine.gateway("g")
    gateway.register_source("kept", adapter, gateway="g")
    gateway.handle_push(SyncPush("alice", (delta("todos", 0),)))
    cursor, received = gateway.handle_pull(SyncPull("bob", 0)).server_hlc, []
    for table, elapsed_ms in (("todos", 10_000), ("orders", -5_000)):
        clock.advance(elapsed_ms)
        gateway.handle_push(SyncPush("alice", (delta(table, 1),)))
        gateway.flush()
        clock.advance(1)
        for _ in range(2):
            page = gateway.handle_pull(SyncPull("bob", cursor, source="kept"))
            cursor = page.server_hlc
            received += [(each.table, each.row_id) for each in page.deltas if each.op == "INSERT"]
    assert received == [("todos", "0"), ("todos", "1"), ("orders", "1")]
    engine.close()
    adapter.close()


def test_a_change_that_reached_only_one_shard_is_completed_on_opening(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    engine.gateway("g").handle_push(both(1))
    engine.gateway("g").handle_push(both(2))
    engine.close()
    main = Engine(open_store(f"sqlite://{tmp_path}", wall), wall)
    main.open()
    main.gateway("g").set_rules(RULES)
    main.gateway("g").register_schema(parse_schema({"table": "orders", "columns": [{"name": "n", "type": "number"}]}))
    main.gateway("g").set_write_scope("rules")
    main.close()
    engine = opened(tmp_path)
    try:
        assert isinstance(engine.store, ShardedStore)
        configs = [store.gateway_config("g") for store in engine.store.stores.values()]
        assert [(each.rules, sorted(each.schemas), each.write_scope) for each in configs] == [
            (RULES, ["orders"], "rules")
        ] * 2
        page = engine.gateway("g").handle_pull(SyncPull("bob", 0))
        assert {each.key for each in page.deltas} == {("orders", "1"), ("todos", "1")}
    finally:
        engine.close()


@pytest.mark.parametrize("changed", ["rules", "schema", "write scope"])
def test_shards_agree_after_two_changes_at_the_same_time(tmp_path: Path, changed: str, monkeypatch) -> None:
    """The second change is complete when the first one reaches the second shard."""
    schemas = [{"table": "orders", "columns": [{"name": n, "type": "number"} for n in names]} for names in ("n", "nm")]
    method, first, second = {
        "rules": ("set_rules", RULES, all_rows_rules()),
        "schema": ("register_schema", *map(parse_schema, schemas)),
        "write scope": ("set_write_scope", "any", "rules"),
    }[changed]
    engine = opened(tmp_path)
    try:
        gateway = engine.gateway("g")
        assert isinstance(engine.store, ShardedStore)
        apply_in_shard = getattr(ShardGateway, method)

        calls = []

        def apply_late(shard: ShardGateway, value: object) -> object:
            calls.append(shard)
            if len(calls) == 2:  # the default shard has the first change
                monkeypatch.undo()
                getattr(gateway, method)(second)
            return apply_in_shard(shard, value)

        monkeypatch.setattr(ShardGateway, method, apply_late)
        getattr(gateway, method)(first)
        configs = [store.gateway_config("g") for store in engine.store.stores.values()]
        parts = [
            (each.rules, {name: known.schema for name, known in each.schemas.items()}, each.write_scope)
            for each in configs
        ]
        assert parts[0] == parts[1]
        assert second in (parts[0][0], *parts[0][1].values(), parts[0][2])
    finally:
        engine.close()


def test_a_push_that_one_shard_rejects_reserves_no_spelling_in_another(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    try:
        gateway = engine.gateway("g")
        gateway.register_schema({"table": "todos", "columns": [{"name": "n", "type": "string"}]})
        spelled = replace(delta("orders", 1), columns=(ColumnValue.of("Title", "x"),))
        with pytest.raises(SchemaMismatchError):
            gateway.handle_push(SyncPush("alice", (spelled, delta("todos", 2))))
        pushed = replace(delta("orders", 3), columns=(ColumnValue.of("title", "x"),))
        fitting = replace(delta("todos", 4), columns=(ColumnValue.of("n", "x"),))
        assert gateway.handle_push(SyncPush("alice", (pushed, fitting))).accepted == 2
        with pytest.raises(SchemaMismatchError, match="only in case"):
            gateway.handle_push(SyncPush("alice", (replace(spelled, hlc=spelled.hlc + 9), fitting)))
    finally:
        engine.close()


def test_a_push_that_one_shard_rejects_is_not_to_be_retried_while_another_is_full(tmp_path: Path) -> None:
    limits = EngineLimits(max_backpressure_bytes=1)
    engine = Engine(open_staging(f"sqlite://{tmp_path}", SHARDS, wall), wall, limits)
    engine.open()
    try:
        gateway = engine.gateway("g")
        gateway.register_schema({"table": "orders", "columns": [{"name": "n", "type": "string"}]})
        gateway.handle_push(SyncPush("alice", (delta("todos", 1),)))  # fills the shard that is checked first
        with pytest.raises(SchemaMismatchError) as caught:
            gateway.handle_push(SyncPush("alice", (delta("todos", 2), delta("orders", 3))))
        assert [each.delta_id for each in caught.value.rejected] == [delta("orders", 3).delta_id]
        fitting = replace(delta("orders", 4), columns=(ColumnValue.of("n", "x"),))
        with pytest.raises(BackpressureError):
            gateway.handle_push(SyncPush("alice", (delta("todos", 2), fitting)))
    finally:
        engine.close()


def test_a_rejected_schema_reserves_no_spelling(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    try:
        gateway = engine.gateway("g")
        schema = {"table": "orders", "columns": [{"name": "n", "type": "number"}]}
        gateway.register_schema(schema)
        wrong = [{"name": "n", "type": "string"}, {"name": "Note", "type": "string"}]
        with pytest.raises(SchemaError, match="cannot become"):
            gateway.register_schema(schema | {"columns": wrong})
        right = [*schema["columns"], {"name": "note", "type": "string"}]
        assert gateway.register_schema(schema | {"columns": right}) == 2
    finally:
        engine.close()


def test_a_client_whose_record_one_shard_lost_is_sent_the_deletes_there_after_a_push_to_another(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    try:
        gateway = engine.gateway("g")
        gateway.handle_push(both(1))
        cursor = gateway.handle_pull(SyncPull("bob", 0)).server_hlc
        engine.store_of("todos").erase_client("g", "bob")
        removed = replace(delta("todos", 2), op="DELETE", row_id="1", columns=())
        gateway.handle_push(SyncPush("alice", (removed,)))
        pushed = gateway.submit_push(
            partial(PushRequest, SyncPush("bob", (delta("orders", 3, "bob"),)), {"sub": "bob"}, known_cursor=cursor)
        ).result(60)
        page = gateway.handle_pull(SyncPull("bob", pushed.server_hlc))
        assert ("DELETE", "todos", "1") in [(each.op, each.table, each.row_id) for each in page.deltas]
    finally:
        engine.close()


def test_a_client_is_erased_from_every_shard(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    try:
        gateway = engine.gateway("g")
        gateway.handle_push(both(1))
        gateway.handle_push(both(2, "bob"))
        erased = engine.store.erase_client("g", "alice")
        assert erased.row_count == 2
        requests = engine.store.erasures("g")
        assert [each.client_id for each in requests] == ["alice", "alice"]
        assert len({each.seq for each in requests}) == 2
        for each in requests:
            engine.store.confirm_erasure("g", each.seq)
        assert all(each.lake_ms for each in engine.store.erasures("g"))
        page = gateway.handle_pull(SyncPull("carol", 0))
        assert {each.key for each in page.deltas} == {("orders", "2"), ("todos", "2")}
        with pytest.raises(NotFoundError):
            engine.store.erase_client("g", "nobody")
        with pytest.raises(NotFoundError):
            engine.store.confirm_erasure("g", 7 << 32)
    finally:
        engine.close()


def test_an_erasure_keeps_its_number_when_a_shard_is_added(tmp_path: Path) -> None:
    """A run of the pipeline may confirm what it listed before the server was started with another shard."""
    engine = opened(tmp_path)
    engine.gateway("g").handle_push(both(1))
    engine.store.erase_client("g", "alice")
    before = engine.store.erasures("g")
    engine.close()
    engine = opened(tmp_path, shards=ShardMap({"orders": "shard-orders", "items": "shard-items"}, "shard-default"))
    try:
        engine.gateway("g")
        assert engine.store.erasures("g") == before
    finally:
        engine.close()


def test_a_store_of_another_shard_is_rejected_and_closed(tmp_path: Path) -> None:
    engine = opened(tmp_path / "one")
    engine.gateway("g").handle_push(both(1))
    engine.close()
    url = f"sqlite://{tmp_path / 'one' / 'shard-orders'}"
    wrong = ShardMap({"orders": "shard-a"}, "shard-default", {"shard-a": url})
    with pytest.raises(ConfigurationError, match="holds shard 'shard-orders' of gateway 'g'"):
        opened(tmp_path / "two", shards=wrong)
    again = opened(tmp_path / "one")
    with pytest.raises(StagingUnavailableError):
        opened(tmp_path / "three", shards=ShardMap({"orders": "shard-orders"}, "shard-default", {"shard-orders": url}))
    again.close()


def test_new_tables_may_be_assigned_to_a_shard_at_any_time(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    engine.gateway("g").handle_push(both(1))
    cursor = engine.gateway("g").handle_pull(SyncPull("bob", 0)).server_hlc
    engine.close()
    engine = opened(tmp_path, shards=ShardMap({**SHARDS.tables, "items": "shard-items"}, "shard-default"))
    try:
        engine.gateway("g").handle_push(SyncPush("alice", (delta("items", 1),)))
        page = engine.gateway("g").handle_pull(SyncPull("bob", cursor))
        assert [(each.op, each.table) for each in page.deltas] == [("INSERT", "items")], "bob's cursor remains valid"
    finally:
        engine.close()


def test_a_shard_that_may_not_have_its_table_is_not_created(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    engine.gateway("g").handle_push(both(1))
    engine.close()
    with pytest.raises(ConfigurationError, match="table 'todos' of gateway 'g' has rows in shard 'shard-default'"):
        opened(tmp_path, shards=ShardMap({**SHARDS.tables, "todos": "shard-todos"}, "shard-default"))
    assert not (tmp_path / "shard-todos").exists()
