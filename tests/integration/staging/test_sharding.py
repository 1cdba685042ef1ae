"""Two shards behind one server: clients notice nothing, and a repeat completes a push that a crash interrupted."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import requests

from tests.integration.gateway_support import DEADLINE, delta
from tests.integration.live.live_support import Live

SHARDS = {"shards": {"orders": "shard-orders"}, "default": "shard-default"}


@pytest.fixture
def sharded(spawn):
    """A server whose orders have a separate store; it can be restarted."""

    def start(*, shards=SHARDS, **variables):
        return spawn(LAKESYNC_SHARD_CONFIG=json.dumps(shards), **variables)

    return start


def one_of_each(row: str, client: str = "alice") -> list[dict[str, Any]]:
    """A row of a table of each shard."""
    return [
        delta(row, {"title": row}, client=client, table="todos"),
        delta(row, {"total": 1}, client=client, table="orders"),
    ]


def rows_of(pages: list[dict[str, Any]]) -> Counter[tuple[str, str, str]]:
    return Counter((each["op"], each["table"], each["rowId"]) for page in pages for each in page["deltas"])


def walk(client, since: str = "0", limit: int = 1000) -> list[dict[str, Any]]:
    """Pull pages until there are no more."""
    pages = [client.pull(since, limit=limit).json()]
    while pages[-1]["hasMore"]:
        pages.append(client.pull(pages[-1]["serverHlc"], limit=limit).json())
    return pages


def test_a_push_is_split_by_shard_and_pulled_in_pages(sharded, tmp_path):
    server = sharded()
    alice, bob = server.client("alice"), server.client("bob")
    for n in range(5):
        answer = alice.push(*one_of_each(f"r{n}")).json()
        assert answer["accepted"] == 2
    staging = tmp_path / "data" / "staging"
    assert (staging / "shard-orders" / "log.db").exists()
    waiting = {each["shard"]: each["deltas"] for each in server.internal("backlog")}
    assert waiting == {"shard-default": 5, "shard-orders": 5}
    pages = walk(bob, limit=3)
    assert [len(page["deltas"]) for page in pages] == [3, 3, 3, 1]
    assert {each["table"] for each in pages[0]["deltas"]} | {each["table"] for each in pages[1]["deltas"]} == {
        "todos",
        "orders",
    }, "a table with many changes does not delay the other one"
    assert rows_of(pages) == {("INSERT", table, f"r{n}"): 1 for table in ("todos", "orders") for n in range(5)}
    cursor = pages[-1]["serverHlc"]
    assert bob.pull(cursor).json() == {"deltas": [], "serverHlc": cursor, "hasMore": False}
    assert alice.pull(answer["serverHlc"]).json()["deltas"] == []
    alice.push(delta("r0", {"total": 2}, before={"total": 1}, client="alice", table="orders"))
    assert rows_of(walk(bob, cursor)) == {("UPDATE", "orders", "r0"): 1}


def test_cursors_survive_a_restart_and_an_unknown_one_is_rejected(sharded):
    first = sharded()
    first.client("alice").push(*one_of_each("r1"))
    cursor = first.client("bob").pull().json()["serverHlc"]
    first.process.kill()
    first.process.wait(DEADLINE)
    second = sharded()
    second.client("alice").push(*one_of_each("r2"))
    bob = second.client("bob")
    assert rows_of(walk(bob, cursor)) == {("INSERT", table, "r2"): 1 for table in ("todos", "orders")}
    unknown = str(int(cursor) + 7)
    refused = bob.call(
        "GET", "/sync/{gw}/pull", params={"since": unknown, "clientId": "bob"}, headers={"X-LakeSync-Client": "1"}
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "RESYNC_REQUIRED")
    assert set(rows_of(walk(bob, unknown))) == {
        (op, table, row) for op in ("DELETE", "INSERT") for table in ("todos", "orders") for row in ("r1", "r2")
    }


def test_a_crash_between_two_shards_is_completed_by_the_repeat(sharded):
    first = sharded(LAKESYNC_CRASH_AT="sharding.after_part")
    push = one_of_each("r1")
    with pytest.raises(requests.ConnectionError):
        first.client("alice").push(*push)
    first.process.wait(DEADLINE)
    second = sharded()
    before = {each["shard"]: each["deltas"] for each in second.internal("backlog")}
    assert before == {"shard-default": 1, "shard-orders": 0}, "the crash was between the two commits"
    for _ in range(2):
        assert second.client("alice").push(*push).json()["accepted"] == 2
    after = {each["shard"]: each["deltas"] for each in second.internal("backlog")}
    assert after == {"shard-default": 1, "shard-orders": 1}
    assert rows_of(walk(second.client("bob"))) == {("INSERT", table, "r1"): 1 for table in ("todos", "orders")}


def test_a_rejection_in_one_shard_stores_nothing_in_either(sharded):
    server = sharded()
    alice = server.client("alice")
    for table, column in (("orders", "total"), ("todos", "title")):
        schema = {"table": table, "columns": [{"name": column, "type": "string"}]}
        assert alice.admin().call("POST", "/admin/schema/{gw}", json=schema).status_code == 200
    refused = alice.push(
        delta("r1", {"title": "fits"}, client="alice", table="todos"),
        delta("r1", {"total": 1}, client="alice", table="orders"),
        delta("r2", {"titel": "x"}, client="alice", table="todos"),
    )
    assert refused.status_code == 422
    assert len(refused.json()["rejected"]) == 2, "the rejections of every shard are reported"
    assert {each["deltas"] for each in server.internal("backlog")} == {0}
    assert server.client("bob").pull().json()["deltas"] == []


def test_rules_and_admin_requests_apply_to_every_shard(sharded):
    server = sharded()
    alice, bob = server.client("alice"), server.client("bob", team="red")
    for table in ("todos", "orders"):
        for team in ("red", "blue"):
            alice.push(delta(team, {"team": team}, client="alice", table=table))
    rules = {
        "version": 1,
        "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
    assert alice.admin().call("POST", "/admin/sync-rules/{gw}", json=rules).status_code == 200
    assert rows_of(walk(bob)) == {("INSERT", table, "red"): 1 for table in ("todos", "orders")}
    explanation = alice.admin().call(
        "GET", "/admin/explain/{gw}", params={"clientId": "bob", "table": "orders", "rowId": "blue"}
    )
    assert explanation.json()["verdict"] == "hidden"
    assert alice.admin().call("GET", "/admin/schema/{gw}", params={"tables": "true"}).json()["tables"] == [
        "orders",
        "todos",
    ]
    assert alice.call("GET", "/sync/{gw}/metrics").json()["logSize"] == 4
    shards = {each["shard"]: each for each in alice.admin().call("GET", "/admin/metrics/{gw}").json()["shards"]}
    assert {name: (each["logSize"], each["lastSeq"]) for name, each in shards.items()} == {
        "shard-default": (2, 2),
        "shard-orders": (2, 2),
    }
    assert alice.admin().call("POST", "/admin/flush/{gw}").status_code == 202
    assert all(each["flush_requested_ms"] for each in server.internal("backlog"))
    erased = server.internal("erase_row", gateway="gw", table="orders", row_id="red")
    assert erased["row_count"] == 1
    assert server.internal("erasures", gateway="gw")[0]["seq"] == erased["seq"]
    server.internal("confirm_erasure", gateway="gw", seq=erased["seq"])
    assert server.internal("erasures", gateway="gw")[0]["lake_ms"]


def test_a_change_in_any_shard_is_broadcast(sharded):
    server = sharded()
    alice, bob = server.client("alice"), server.client("bob")
    with Live(alice) as writer, Live(bob) as reader:
        writer.pull()
        reader.pull()
        for n, table in enumerate(("orders", "todos", "orders")):
            writer.push(delta(f"r{n}", {"n": n}, client="alice", table=table))
            page = reader.broadcast()
            assert [(each.op, each.table, each.row_id) for each in page.deltas] == [("INSERT", table, f"r{n}")]
            asked = {"clientId": "bob", "table": table, "rowId": f"r{n}"}
            explanation = alice.admin().call("GET", "/admin/explain/{gw}", params=asked).json()
            assert (explanation["verdict"], explanation["standing"]["connected"]) == ("delivered", True)
        assert bob.pull(str(page.server_hlc)).json()["deltas"] == []
        assert not writer.broadcasts


def test_an_unsharded_store_continues_as_the_default_shard(spawn, sharded):
    plain = spawn()
    plain.client("alice").push(delta("r1", {"n": 1}, client="alice", table="todos"))
    cursor = plain.client("bob").pull().json()["serverHlc"]
    plain.process.kill()
    plain.process.wait(DEADLINE)
    server = sharded()
    server.client("alice").push(*one_of_each("r2"))
    assert rows_of(walk(server.client("carol"))) == {
        ("INSERT", "todos", "r1"): 1,
        ("INSERT", "todos", "r2"): 1,
        ("INSERT", "orders", "r2"): 1,
    }
    bob = rows_of(walk(server.client("bob"), cursor))
    assert bob[("DELETE", "todos", "r1")] == bob[("INSERT", "todos", "r1")] == 1, "an earlier cursor restarts"


def test_a_table_with_rows_cannot_change_its_shard(sharded):
    server = sharded()
    server.client("alice").push(*one_of_each("r1"))
    server.process.kill()
    server.process.wait(DEADLINE)
    moved = {"shards": {"orders": "shard-orders", "todos": "shard-todos"}, "default": "shard-default"}
    refused = sharded(shards=moved, ready=False)
    reason = next(line["reason"] for line in refused.lines() if line["event"] == "the gateway cannot run")
    assert "Traceback" not in refused.log.read_text()
    assert "table 'todos' of gateway 'gw' has rows in shard 'shard-default'" in reason
    back = sharded()
    assert len(walk(back.client("bob"))[0]["deltas"]) == 2
