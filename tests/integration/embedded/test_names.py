"""Names of tables and columns are compared without case, in a gateway and across the namespace."""

from __future__ import annotations

from functools import partial
from threading import Event

import pytest

from lakesync.engine import Engine
from lakesync.engine.pushing import PushRequest
from lakesync.model.errors import SchemaError, SchemaMismatchError, StagingUnavailableError
from lakesync.model.namespaces import Namespaces
from lakesync.model.types import SyncPush
from lakesync.staging import open_store
from lakesync.staging.sharded import open_staging
from lakesync.staging.shards import ShardMap
from lakesync.testing import ManualClock
from tests.conformance.book import make_delta
from tests.property.test_full_disk import files_end_at, whole_disk

NAMESPACES = Namespaces("tables", {"apart": "own"})


def schema(table, *columns):
    return {"table": table, "columns": [{"name": name, "type": "json"} for name in columns]}


def opened(store):
    engine = Engine(store, ManualClock(1_700_000_000_000), namespaces=NAMESPACES)
    engine.open()
    return engine


@pytest.fixture(params=["one", "sharded", "postgres"])
def place(request, tmp_path):
    if request.param == "postgres":
        url = request.getfixturevalue("own_database")
        return lambda: open_staging(url, None, ManualClock(1_700_000_000_000))
    shards = ShardMap({"notes": "second"}, "first") if request.param == "sharded" else None
    return lambda: open_staging(f"sqlite://{tmp_path}", shards, ManualClock(1_700_000_000_000))


@pytest.fixture
def engine(place):
    made = opened(place())
    yield made
    made.close()


def push(gateway, table, hlc=1, client="c", **values):
    delta = make_delta(client, hlc, "r", table=table, **values)
    return gateway.handle_push(SyncPush(client, (delta,)), {"sub": client})


@pytest.mark.parametrize("first", ["registered", "pushed"])
@pytest.mark.parametrize("other", ["shop", "shop_eu"])
def test_a_table_that_differs_only_in_case_is_rejected(engine, first, other):
    shop, rival = engine.gateway("shop"), engine.gateway(other)
    if first == "registered":
        shop.register_schema(schema("notes", "title"))
    else:
        push(shop, "notes", title=1)
    with pytest.raises(SchemaMismatchError, match="'Notes' differs from table 'notes'") as refused:
        push(rival, "Notes", 2, title=1)
    assert len(refused.value.rejected) == 1
    with pytest.raises(SchemaError, match=r"'NOTES' differs from .*'notes'"):
        rival.register_schema(schema("NOTES", "title"))
    push(rival, "notes", 3, client="d", title=1)


@pytest.mark.parametrize("first", ["registered", "pushed"])
@pytest.mark.parametrize("other", ["shop", "shop_eu"])
def test_a_column_that_differs_only_in_case_is_rejected(engine, first, other):
    shop, rival = engine.gateway("shop"), engine.gateway(other)
    if first == "registered":
        shop.register_schema(schema("notes", "title"))
    else:
        push(shop, "notes", title=1)
    with pytest.raises(SchemaMismatchError, match="'Title'"):
        push(rival, "notes", 2, Title=1)
    with pytest.raises(SchemaError, match="'Title'"):
        rival.register_schema(schema("notes", *(["title"] if other == "shop" else []), "Title"))


def test_two_spellings_in_one_push_are_rejected(engine):
    gateway = engine.gateway("shop")
    deltas = (make_delta("c", 1, "a", table="Todos", x=1), make_delta("c", 2, "b", table="todos", x=1))
    with pytest.raises(SchemaMismatchError) as refused:
        gateway.handle_push(SyncPush("c", deltas))
    assert len(refused.value.rejected) == 1
    push(gateway, "todos", 3, x=1)


def test_names_of_different_namespaces_may_differ_in_case(engine):
    push(engine.gateway("shop"), "notes", title=1)
    push(engine.gateway("apart"), "Notes", Title=1)
    engine.gateway("apart").register_schema(schema("Notes", "Title"))


def test_a_store_of_an_earlier_version_checks_the_names_of_its_schemas(place):
    engine = opened(place())
    gateway = engine.gateway("shop")
    gateway.register_schema(schema("notes", "title"))
    for part in getattr(gateway, "_parts", {"": gateway}).values():
        part._store.submit("shop", lambda commit: commit._query("DELETE FROM spelled_name WHERE gateway = ?")).result()
    engine.close()
    again = opened(place())
    try:
        with pytest.raises(SchemaMismatchError):
            push(again.gateway("shop_eu"), "Notes", title=1)
    finally:
        again.close()


def test_one_of_several_concurrent_spellings_is_accepted(tmp_path):
    engine = opened(open_store(f"sqlite://{tmp_path}", ManualClock(1_700_000_000_000)))
    try:
        spellings = ["notes", "Notes", "NOTES", "nOTES"]
        asked = [
            engine.gateway(f"g{place}").submit_push(
                partial(PushRequest, SyncPush("c", (make_delta("c", 1, "r", table=spelling, x=1),)), {"sub": "c"})
            )
            for place, spelling in enumerate(spellings)
        ]
        taken = [each.exception() is None for each in asked]
        assert sum(taken) == 1
    finally:
        engine.close()


def test_one_spelling_of_two_concurrent_processes_is_accepted(own_database):
    """Each store has its own connections, like a gateway process."""
    engines = [opened(open_store(own_database, ManualClock(1_700_000_000_000))) for _ in range(2)]
    try:
        for engine in engines:
            engine.gateway("shop"), engine.gateway("shop_eu")
        asked = [
            engine.gateway(gateway).submit_push(
                partial(
                    PushRequest,
                    SyncPush(f"c{place}", (make_delta(f"c{place}", 1, "r", table=f"{spelling}{number}", x=1),)),
                    {"sub": f"c{place}"},
                )
            )
            for number in range(20)
            for place, (engine, gateway, spelling) in enumerate(
                zip(engines, ("shop", "shop_eu"), ("notes", "Notes"), strict=True)
            )
        ]
        taken = [each.exception() is None for each in asked]
        assert [sum(taken[start : start + 2]) for start in range(0, 40, 2)] == [1] * 20
    finally:
        for engine in engines:
            engine.close()


def test_a_name_of_a_group_that_was_not_committed_is_not_known(tmp_path):
    """Two pushes share a commit that the disk rejects; afterwards another spelling is the first one."""
    engine = opened(open_store(f"sqlite://{tmp_path}", ManualClock(1_700_000_000_000)))
    try:
        gateway, full = engine.gateway("shop"), Event()
        with whole_disk():
            blocked = engine.store.read("shop", lambda _: full.wait(20))
            asked = [
                gateway.submit_push(
                    partial(
                        PushRequest,
                        SyncPush(client, (make_delta(client, 1, "r", table="Notes", x=1),)),
                        {"sub": client},
                    )
                )
                for client in "cd"
            ]
            files_end_at(1)  # not its present size, within which SQLite could still write after a checkpoint
            full.set()
            blocked.result(20)
            for each in asked:
                with pytest.raises(StagingUnavailableError):
                    each.result(20)
        push(gateway, "notes", 2, x=1)
        with pytest.raises(SchemaMismatchError, match="'Notes' differs from table 'notes'"):
            push(gateway, "Notes", 3, x=1)
    finally:
        engine.close()
