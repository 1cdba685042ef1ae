"""A lost staging store is rebuilt from the lake, and its clients return."""

from __future__ import annotations

import pytest

from lakesync.engine.inspection.client_position import TrackedCursor
from lakesync.engine.inspection.explain import explain
from lakesync.engine.rebuild import rebuild
from lakesync.engine.subscribers import Newcomer, SubscriberGroup, SubscriptionState
from lakesync.model.errors import NotFoundError, ResyncRequiredError
from lakesync.model.types import ColumnValue, RowDelta, SyncPull
from tests.conformance.book import id_sum, make_delta
from tests.conformance.rebuild_support import (
    RULES,
    SCHEMA,
    Client,
    Lake,
    carry,
    everything,
    opened,
    random_history,
    rebuilt,
)


@pytest.mark.parametrize("ours", [True, False], ids=["our client", "a stock client"])
def test_clients_with_old_cursors_converge(url, clock, ours):
    engine = opened(url, clock)
    engine.gateway("g").register_schema(SCHEMA)
    engine.gateway("g").set_rules(RULES)
    settings = {"projectId": "p", "dataset": "d"}
    registered = engine.gateway("g").register_connector({"name": "bq", "type": "bigquery", "bigquery": settings})
    a, b = random_history(engine, clock)
    a.rows = {f"r{n}": {"team": "red", "x": n} for n in range(10)}  # its own deltas
    a.pull(engine)
    b.pull(engine)
    lake = Lake()
    carry(lake, engine)
    config = engine.store.gateway_config("g")
    red, blue = everything(engine, "red"), everything(engine, "blue")
    epoch, newest = engine.store.read("g", lambda view: (view.epoch, view.arrival)).result()
    lost = make_delta("a", (clock.now_ms << 16) + 5, "lost", team="red", x=7)
    a.push(engine, lost)
    a.pull(engine)
    known = engine.store.read("g", lambda view: view.arrival).result()
    engine.close()

    clock.advance(1000)
    (done,) = rebuild(url, clock, lake, replace=True)
    assert (done.pushes, done.deltas, done.newest) == (3, 17, newest)
    assert (done.schemas, done.rules, done.connectors) == (1, True, 1)
    assert done.arrival > known
    assert done.epoch != epoch
    engine = opened(url, clock)
    assert engine.store.gateway_config("g") == config
    assert engine.store.connectors("g") == [registered]
    assert everything(engine, "red") == red
    assert everything(engine, "blue") == blue
    for client, expected in ((a, red), (b, blue)):
        client.pull(engine, ours=ours)
        assert {row: values for row, values in client.rows.items() if row != "lost"} == expected
    back = a.push(engine, lost)
    assert back.accepted == 1
    assert everything(engine, "red") == {**red, "lost": {"team": "red", "x": 7}}
    assert back.server_hlc <= engine.store.read("g", lambda view: view.arrival).result()
    engine.close()


def test_a_reference_client_that_lost_its_cursor_keeps_its_rows(url, clock):
    engine = opened(url, clock)
    random_history(engine, clock)
    reader = Client("reader", "red")
    reader.pull(engine)
    assert len(reader.rows) == 14
    engine = rebuilt(engine, url, clock)
    expected, reader.cursor = dict(reader.rows), 0
    reader.pull(engine)
    assert reader.rows == expected
    with pytest.raises(NotFoundError):
        engine.gateway("g").submit_checkpoint("stranger", {"sub": "stranger"}).result()
    engine.close()


@pytest.mark.parametrize("limit", [1, 100], ids=["between pages", "at the end"])
def test_a_peek_cursor_from_before_a_rebuild_is_rejected(url, clock, limit):
    engine = opened(url, clock)
    a, _ = random_history(engine, clock)
    lake = Lake()
    carry(lake, engine)
    a.push(engine, make_delta("a", (clock.now_ms << 16) + 5, "lost", x=7))
    seen = engine.gateway("g").submit_peek({"sub": "reader"}, None, limit).result(60)
    engine.close()
    rebuild(url, clock, lake, replace=True)
    engine = opened(url, clock)
    for cursor in (seen.cursor, seen.cursor.partition(".")[2]):  # the second is one of an earlier version
        with pytest.raises(ResyncRequiredError, match="the store changed"):
            engine.gateway("g").submit_peek({"sub": "reader"}, cursor, limit).result(60)
    engine.close()


@pytest.mark.parametrize("ours", [True, False], ids=["our client", "a stock client"])
def test_explain_predicts_the_next_pull_after_a_rebuild(url, clock, ours):
    engine = opened(url, clock)
    a, _ = random_history(engine, clock)
    reader = Client("reader", "red")
    reader.pull(engine, limit=100)
    engine = rebuilt(engine, url, clock)
    gateway = engine.gateway("g")

    def explained(row: str):
        where = TrackedCursor(reader.cursor, reader.cursor, knows_resync=ours)
        return engine.store.read(
            "g", lambda view: explain(view, "reader", "notes", row, None, gateway.rules, where)
        ).result()

    explanation = explained("r3")
    assert any("the client's record is gone" in reason for reason in explanation.reasons)
    assert explanation.next_pull == ("DELETE", "INSERT")
    reader.pull(engine, ours=ours, limit=100)
    a.push(engine, make_delta("a", (clock.now_ms << 16) + 8, "new", team="red", x=1))
    explanation = explained("new")
    assert explanation.next_pull == (("INSERT",) if ours else ("DELETE", "INSERT"))
    pull = SyncPull("reader", reader.cursor)
    page = gateway.submit_pull(pull, {"sub": "reader"}, knows_resync=ours).result().decoded()
    assert tuple(delta.op for delta in page.deltas) == explanation.next_pull
    engine.close()


@pytest.mark.parametrize("cursor", ["kept", "lost"])
def test_a_deletion_known_only_to_the_lake_reaches_clients_with_the_row(url, clock, cursor):
    engine = opened(url, clock)
    engine.gateway("g").set_rules(RULES)
    a, _ = random_history(engine, clock)
    reader = Client("reader", "red")
    reader.pull(engine)
    a.push(engine, make_delta("a", (clock.now_ms << 16) + 7, "r5"))
    assert "r5" in reader.rows
    engine = rebuilt(engine, url, clock)
    if cursor == "lost":
        reader.cursor = 0
    reader.pull(engine)
    assert "r5" not in reader.rows
    assert reader.rows == everything(engine, "red")
    engine.close()


def test_a_rebuild_restores_ids_and_ledger_without_unflushed_deltas(url, clock):
    engine = opened(url, clock)
    a, b = random_history(engine, clock)
    lake = Lake()
    carry(lake, engine)
    sent = [delta for push in lake.entries["g"] for delta in push.deltas]
    ledger = engine.store.ledger("g")
    engine.close()
    rebuild(url, clock, lake, replace=True)
    engine = opened(url, clock)
    (day,) = engine.store.ledger("g")
    assert (day.count, day.id_sum) == (ledger[0].count, ledger[0].id_sum) == (len(sent), id_sum(sent))
    assert (day.flushed_count, day.flushed_id_sum) == (day.count, day.id_sum)
    (waiting,) = engine.store.backlog()
    assert (waiting.deltas, waiting.bytes, waiting.last_seq, waiting.flushed_seq) == (0, 0, 3, 3)
    assert engine.store.plan("g", "main", 10) is None
    assert engine.store.trim("g", "main") == 0
    for push in lake.entries["g"]:
        client = a if push.client_id == "a" else b
        assert client.push(engine, *push.deltas).accepted == len(push.deltas)
    assert engine.store.plan("g", "main", 10) is None
    cells = (ColumnValue.of("x", 5),)
    a.push(engine, RowDelta("UPDATE", "notes", "r5", "a", cells, (clock.now_ms << 16) + 9, "new"))
    assert engine.store.plan("g", "main", 10).batch_id.endswith(".4-4")
    engine.close()


@pytest.mark.parametrize("ours", [True, False], ids=["our client", "a stock client"])
def test_l4_a_subscriber_that_may_have_lost_rows_is_broadcast_no_plain_insert(url, clock, ours):
    engine = opened(url, clock)
    a, _ = random_history(engine, clock)
    engine = rebuilt(engine, url, clock)
    gateway, claims = engine.gateway("g"), {"sub": "bob"}
    page = gateway.submit_pull(SyncPull("bob", 0, 100), claims, knows_resync=ours, live=True).result().decoded()
    state = SubscriptionState(page.server_hlc, 100, knows_resync=ours)
    (state,) = gateway.submit_subscribe([Newcomer("bob", claims, state)]).result()
    clock.advance(5)
    a.push(engine, make_delta("a", clock.now_ms << 16, "new", team="red"))
    for clients in ({"bob"}, {"bob", "carol"}):  # alone, and with another client that shares the page
        group = SubscriberGroup(state, frozenset(clients), frozenset(), frozenset())
        (found,) = gateway.submit_scan([group]).result()
        assert [(delta.op, delta.row_id) for delta in found.page_of("bob").deltas] == [
            *([] if ours else [("DELETE", "new")]),
            ("INSERT", "new"),
        ]
    engine.close()


def test_arrivals_are_not_reused_after_the_clock_was_set_back(url, clock):
    clock.advance(3_600_000)
    engine = opened(url, clock)
    a, _ = random_history(engine, clock)
    lake = Lake()
    carry(lake, engine)
    clock.advance(30_000)
    a.push(engine, make_delta("a", clock.now_ms << 16, "never carried", team="red"))
    known = engine.store.read("g", lambda view: view.arrival).result()
    engine.close()
    clock.advance(-3_600_000)
    (done,) = rebuild(url, clock, lake, replace=True)
    assert done.arrival > known
