"""The WebSocket: push, pull and broadcasts, over a real server with real clients."""

from __future__ import annotations

import gc
import re

import pytest
import requests

from gateway.live.connection import LiveConnection
from lakesync.engine import EngineLimits
from lakesync.model.types import SyncPull, SyncPush, SyncResponse
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag
from tests.integration.gateway_support import DEADLINE, Client, delta, until
from tests.integration.live.live_support import OVERLOOKED, Live, decoded


def ops(page):
    return [(each.op, each.row_id) for each in page.deltas]


@pytest.fixture
def pair(served):
    """Two clients of a separate gateway."""
    alice = served.client("alice")
    return alice, Client(served.url, alice.gateway, "bob")


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_delta_pushed_over_a_websocket_is_pulled_by_another_client(pair, prefix):
    alice, bob = pair
    with Live(alice, prefix=prefix) as live:
        answer = live.push(delta("t1", {"title": "one"}, client="alice"))
        assert answer.server_hlc > 0
        assert answer.deltas == ()
    with Live(bob, prefix=prefix) as live:
        page = live.pull()
        assert ops(page) == [("INSERT", "t1")]
        assert not page.has_more
        assert live.pull(page.server_hlc).deltas == ()
    assert bob.pull(str(page.server_hlc)).json()["deltas"] == []


def test_a_pull_from_an_empty_gateway_is_answered_with_a_frame_that_reference_clients_read(pair):
    with Live(pair[0]) as live:
        live.send(FrameTag.PULL, protobuf.encode_pull(SyncPull("alice", 0, 1000)))
        frame = live.socket.recv(DEADLINE)
        assert len(frame) >= OVERLOOKED
        assert protobuf.decode_response(frame) == SyncResponse((), 0)
        live.push(delta("t1", {"n": 1}, client="alice"))


def test_a_change_is_broadcast_to_the_clients_that_lack_it(pair):
    alice, bob = pair
    with Live(alice) as writer, Live(bob) as reader:
        writer.pull()
        since = reader.pull().server_hlc
        for n in range(5):
            writer.push(delta(f"t{n}", {"n": n}, client="alice"))
            page = reader.broadcast()
            assert ops(page) == [("INSERT", f"t{n}")]
            assert page.server_hlc > since
            since = page.server_hlc
        assert bob.pull(str(since)).json()["deltas"] == []
        reader.push(delta("t0", {"n": 9}, before={"n": 0}, client="bob"))
        assert ops(writer.broadcast()) == [("UPDATE", "t0")]
        assert not writer.broadcasts
        assert not reader.broadcasts


def test_a_push_over_http_is_broadcast_too(pair):
    alice, bob = pair
    with Live(bob) as reader:
        reader.pull()
        alice.push(delta("t1", {"n": 1}, client="alice"))
        assert ops(reader.broadcast()) == [("INSERT", "t1")]
    metrics = requests.get(f"{alice.url}/metrics", timeout=DEADLINE).text
    assert re.search(r"^lakesync_broadcast_deltas_total [1-9]", metrics, re.MULTILINE)


def test_a_client_that_has_not_pulled_gets_no_broadcast(pair):
    alice, bob = pair
    with Live(alice) as writer, Live(bob) as silent, Live(bob) as reader:
        reader.pull()
        writer.push(delta("t1", {"n": 1}, client="alice"))
        reader.broadcast()
        assert ops(silent.pull()) in ([("INSERT", "t1")], [("DELETE", "t1"), ("INSERT", "t1")])
        assert not silent.broadcasts


def test_a_client_that_only_pushed_gets_broadcasts_before_its_first_pull(pair):
    alice, bob = pair
    alice.push(delta("t1", {"n": 1}, client="alice"))
    bob.push(delta("t2", {"n": 2}, client="bob"))
    with Live(bob) as reader:
        assert ops(reader.broadcast()) == [("DELETE", "t1"), ("INSERT", "t1")]
    alice.push(delta("t3", {"n": 3}, client="alice"))
    with Live(bob) as reader:  # it confirmed nothing, so it may lack the rows of the first connection
        rows = []
        while not {row for _, row in rows} >= {"t1", "t3"}:
            rows += ops(reader.broadcast())
        alice.push(delta("t4", {"n": 4}, client="alice"))
        assert ops(reader.broadcast()) == [("DELETE", "t4"), ("INSERT", "t4")]


def test_the_cursor_of_a_push_before_the_first_pull_does_not_pass_a_broadcast_that_may_be_skipped(pair):
    alice, bob = pair
    alice.push(delta("t1", {"n": 1}, client="alice"))
    bob.push(delta("t2", {"n": 2}, client="bob"))
    with Live(bob) as reader:
        assert reader.broadcast().server_hlc == 0
        cursor = reader.push(delta("t3", {"n": 3}, client="bob")).server_hlc
        assert ("INSERT", "t1") in ops(reader.pull(cursor))


def test_a_push_of_another_client_over_a_connection_does_not_get_the_cursor_of_the_first(serve):
    served = serve(secrets=())
    alice = served.client("alice")
    carol = served.client("carol", alice.gateway)
    alice.push(delta("t0", {"n": 0}, client="alice"))
    carol.pull()
    alice.push(delta("t1", {"n": 1}, client="alice"))
    with Live(served.client("bob", alice.gateway)) as shared:
        shared.pull()
        pushed = SyncPush("carol", decoded([delta("t2", {"n": 2}, client="carol")]))
        shared.send(FrameTag.PUSH, protobuf.encode_push(pushed))
        cursor = shared.answer().server_hlc
    assert ("INSERT", "t1") in [(each["op"], each["rowId"]) for each in carol.pull(cursor).json()["deltas"]]


def test_a_client_that_pulls_over_anothers_connection_is_not_sent_its_rows(serve):
    served = serve(EngineLimits(write_scope="any"), secrets=())
    alice = served.client("alice")
    mine = {"name": "mine", "tables": [], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
    alice.admin().call("POST", "/admin/sync-rules/{gw}", json={"version": 1, "buckets": [mine]})
    alice.push(delta("t1", {"owner": "bob"}, client="alice"))
    with Live(served.client("bob", alice.gateway)) as shared:
        assert ops(shared.pull()) == [("INSERT", "t1")]
        shared.send(FrameTag.PULL, protobuf.encode_pull(SyncPull("carol", 0, 1000)))
        assert ops(shared.answer()) == []
        alice.push(delta("t1", {"owner": "dora"}, before={"owner": "bob"}, client="alice"))
        alice.push(delta("t2", {"owner": "carol"}, client="alice"))
        assert ops(shared.broadcast()) == [("INSERT", "t2")]


def test_a_new_client_gets_broadcasts_from_its_first_push_on(pair):
    alice, bob = pair
    with Live(bob) as reader:
        reader.push(delta("t1", {"n": 1}, client="bob"))
        alice.push(delta("t2", {"n": 2}, client="alice"))
        assert ops(reader.broadcast()) == [("DELETE", "t2"), ("INSERT", "t2")]


@pytest.mark.parametrize("got_broadcast", [False, True])
def test_a_client_that_pulled_from_an_empty_gateway_gets_broadcasts_when_it_connects_again(pair, got_broadcast):
    alice, bob = pair
    with Live(bob) as reader:
        for _ in range(2):  # it is known before the second answer
            assert reader.pull().server_hlc == 0
        if got_broadcast:
            alice.push(delta("t1", {"n": 1}, client="alice"))
            assert ops(reader.broadcast()) == [("INSERT", "t1")]
    with Live(bob) as reader:
        if got_broadcast:  # nothing confirms that it has the first connection's broadcast
            assert ops(reader.broadcast()) == [("DELETE", "t1"), ("INSERT", "t1")]
        alice.push(delta("t2", {"n": 2}, client="alice"))
        page = reader.broadcast()
        assert ops(page) == [("DELETE", "t2"), ("INSERT", "t2")]
        assert page.server_hlc == 0


def test_changes_before_the_first_pull_are_sent_once(pair):
    alice, bob = pair
    alice.push(delta("t1", {"n": 1}, client="alice"))
    with Live(bob) as reader:
        assert ops(reader.pull()) == [("INSERT", "t1")]
        alice.push(delta("t2", {"n": 2}, client="alice"))
        assert ops(reader.broadcast()) == [("INSERT", "t2")]


def test_rules_are_applied_to_broadcasts(served):
    name = served.client().gateway
    admin = Client(served.url, name, "an-admin", "admin")
    rules = {
        "version": 1,
        "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=rules).status_code == 200
    assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "any"}).status_code == 200
    writer = Client(served.url, name, "writer", claims={"team": "none"})
    red, blue = (Client(served.url, name, team, claims={"team": team}) for team in ("red", "blue"))
    with Live(red) as reds, Live(blue) as blues:
        reds.pull()
        blues.pull()
        writer.push(delta("t1", {"team": "red"}, client="writer"))
        assert ops(reds.broadcast()) == [("INSERT", "t1")]
        writer.push(delta("t1", {"team": "blue"}, before={"team": "red"}, client="writer"))
        assert ops(reds.broadcast()) == [("DELETE", "t1")]
        assert ops(blues.broadcast()) == [("INSERT", "t1")]
        writer.push(delta("t2", {"team": "blue"}, client="writer"))
        assert ops(blues.broadcast()) == [("INSERT", "t2")]
        assert not blues.broadcasts
        assert not reds.broadcasts


def test_new_rules_reach_connected_clients(served):
    name = served.client().gateway
    admin = Client(served.url, name, "an-admin", "admin")
    writer, reader = (Client(served.url, name, who, claims={"level": "5"}) for who in ("writer", "reader"))
    writer.push(delta("t1", {"level": 3}, client="writer"))
    writer.push(delta("t2", {"level": 7}, client="writer"))
    with Live(reader) as live:
        assert len(live.pull().deltas) == 2
        rules = {
            "version": 1,
            "buckets": [
                {"name": "low", "tables": [], "filters": [{"column": "level", "op": "lte", "value": "jwt:level"}]}
            ],
        }
        assert admin.call("POST", "/admin/sync-rules/{gw}", json=rules).status_code == 200
        held = {"t1", "t2"}
        while held != {"t1"}:
            apply(held, live.broadcast())
        writer.push(delta("t3", {"level": 4}, client="writer"))
        while held != {"t1", "t3"}:
            apply(held, live.broadcast())
        writer.push(delta("t1", {"level": 8}, before={"level": 3}, client="writer"))
        while held != {"t3"}:
            apply(held, live.broadcast())


def apply(held, page):
    for each in page.deltas:
        if each.op == "DELETE":
            held.discard(each.row_id)
        elif each.op == "INSERT":
            assert each.row_id not in held
            held.add(each.row_id)


def test_a_client_between_pages_is_broadcast_the_remaining_pages(pair):
    alice, bob = pair
    alice.push(*(delta(f"t{n}", {"n": n}, client="alice") for n in range(25)))
    with Live(bob) as reader:
        page = reader.pull(limit=10)
        held = set()
        apply(held, page)
        assert page.has_more
        while len(held) < 25:
            page = reader.broadcast()
            apply(held, page)
        assert not page.has_more


def test_pulled_pages_are_not_broadcast_again(serve):
    patient = serve(page_wait_seconds=10 * DEADLINE)
    alice = patient.client("alice")
    bob, carol = (Client(patient.url, alice.gateway, name) for name in ("bob", "carol"))
    alice.push(*(delta(f"t{n}", {"n": n}, client="alice") for n in range(25)))
    with Live(bob) as reader, Live(carol) as other:
        other.pull()
        page = reader.pull(limit=10)
        held = set()
        apply(held, page)
        alice.push(delta("t25", {"n": 25}, client="alice"))
        assert ops(other.broadcast()) == [("INSERT", "t25")]
        while page.has_more:
            page = reader.pull(page.server_hlc, limit=10)
            apply(held, page)
        assert not reader.broadcasts
        assert len(held) == 26
        alice.push(delta("last", {"n": 1}, client="alice"))
        assert ops(reader.broadcast()) == [("INSERT", "last")]


def test_a_connection_that_has_ended_is_not_kept_in_memory(serve):
    patient = serve(page_wait_seconds=10 * DEADLINE)
    alice = patient.client("alice")
    alice.push(*(delta(f"t{n}", {"n": n}, client="alice") for n in range(3)))
    with Live(patient.client("leaving", alice.gateway)) as reader:
        page = reader.pull(limit=1)
        assert reader.pull(page.server_hlc, limit=1).has_more
        assert _connections_of("leaving") == 1
    until(lambda: _connections_of("leaving") == 0, "the connection's end")


def _connections_of(client):
    gc.collect()
    # not isinstance(), which fails for a weak proxy whose object is gone
    return sum(type(each) is LiveConnection and each.client_name == client for each in gc.get_objects())


def test_two_connections_of_one_client_both_get_a_broadcast(pair):
    alice, bob = pair
    with Live(bob) as one, Live(bob) as other, Live(alice) as writer:
        one.pull()
        other.pull()
        writer.push(delta("t1", {"n": 1}, client="alice"))
        assert {op for live in (one, other) for op, _ in ops(live.broadcast())} <= {"INSERT", "DELETE"}
        one.push(delta("t2", {"n": 2}, client="bob"))
        writer.push(delta("t3", {"n": 3}, client="alice"))
        for live in (one, other):
            assert ops(live.broadcast())[-1] == ("INSERT", "t3")


def test_after_a_reload_a_broadcast_row_is_deleted_before_its_insert(pair):
    alice, bob = pair
    with Live(bob) as reader:
        reader.pull()
        alice.push(delta("t1", {"n": 1}, client="alice"))
        assert ops(reader.broadcast()) == [("INSERT", "t1")]
    with Live(bob) as reader:
        assert ops(reader.pull(0)) == [("DELETE", "t1"), ("INSERT", "t1")]
