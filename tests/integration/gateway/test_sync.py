"""Push and pull over HTTP: permitted deltas (P4), order of checks (P5), pages (L9), cursors (L11)."""

from __future__ import annotations

import gzip
import json
import socket

import pytest
import requests

from gateway.write_coalescing import WriteCoalescingTransport
from lakesync.model.types import SyncPull, SyncPush
from lakesync.staging.shards import ShardMap
from lakesync.wire import json as wire_json
from lakesync.wire import protobuf
from tests.integration.gateway_support import DEADLINE, Client, delta, wall_ms

PROTOBUF = {"Content-Type": "application/x-protobuf"}


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_push_reaches_another_client(served, prefix):
    alice = served.client("alice")
    bob = served.client("bob", alice.gateway)
    made = delta("t1", {"title": "Buy milk", "done": False, "tags": ["a", None, 1.5]}, client="alice")
    pushed = alice.call(
        "POST", prefix + "/sync/{gw}/push", json={"clientId": "alice", "deltas": [made], "lastSeenHlc": "0"}
    )
    assert pushed.status_code == 200
    assert pushed.json()["accepted"] == 1
    assert pushed.json()["deltas"] == []
    assert int(pushed.json()["serverHlc"]) > 0
    pulled = bob.call("GET", prefix + "/sync/{gw}/pull", params={"since": "0", "clientId": "bob"})
    assert pulled.status_code == 200
    assert pulled.json()["deltas"] == [made]
    assert pulled.json()["hasMore"] is False
    assert bob.pull(pulled.json()["serverHlc"]).json()["deltas"] == []


def test_a_repeated_push_counts_as_accepted_and_changes_nothing(served):
    alice, made = served.client(), delta("t1", {"title": "once"})
    first, second = alice.push(made), alice.push(made)
    assert [first.json()["accepted"], second.json()["accepted"]] == [1, 1]
    assert alice.call("GET", "/sync/{gw}/metrics").json()["logSize"] == 1


def test_pull_by_body_equals_pull_by_query(served):
    alice = served.client()
    bob, carol = served.client("bob", alice.gateway), served.client("carol", alice.gateway)
    alice.push(*(delta(f"t{n}", {"n": n}) for n in range(5)))
    by_query = bob.pull(limit=2).json()
    by_body = carol.call("POST", "/sync/{gw}/pull", json={"clientId": "carol", "sinceHlc": "0", "maxDeltas": 2}).json()
    assert by_body["deltas"] == by_query["deltas"]
    assert len(by_body["deltas"]) == 2
    assert by_body["hasMore"] is True


def test_pages_are_contiguous(served):
    alice = served.client()
    bob = served.client("bob", alice.gateway)
    alice.push(*(delta(f"t{n}", {"n": n}) for n in range(25)))
    seen, since, more = [], "0", True
    while more:
        page = bob.pull(since, limit=10).json()
        seen += [each["rowId"] for each in page["deltas"]]
        since, more = page["serverHlc"], page["hasMore"]
    assert seen == [f"t{n}" for n in range(25)]


def test_protobuf_requests_get_protobuf_answers(served):
    alice = served.client()
    bob = served.client("bob", alice.gateway)
    made = wire_json.decode_push(
        json.dumps({"clientId": "client-1", "deltas": [delta("t1", {"title": "ż"})], "lastSeenHlc": "0"}).encode()
    )
    assert isinstance(made, SyncPush)
    pushed = alice.call("POST", "/sync/{gw}/push", data=protobuf.encode_push(made), headers=PROTOBUF)
    assert pushed.status_code == 200
    assert pushed.headers["content-type"] == "application/x-protobuf"
    assert protobuf.decode_response(pushed.content).server_hlc > 0
    asked = protobuf.encode_pull(SyncPull("bob", 0, 100))
    pulled = bob.call("POST", "/sync/{gw}/pull", data=asked, headers=PROTOBUF)
    assert protobuf.decode_response(pulled.content).deltas == made.deltas
    carol = served.client("carol", alice.gateway)
    by_query = carol.call(
        "GET", "/sync/{gw}/pull", params={"clientId": "carol"}, headers={"Accept": "application/x-protobuf"}
    )
    assert protobuf.decode_response(by_query.content).deltas == made.deltas


def test_a_gzip_body_is_decompressed(served):
    alice = served.client()
    body = json.dumps({"clientId": "client-1", "deltas": [delta("t1", {"n": 1})], "lastSeenHlc": "0"}).encode()
    answer = alice.call("POST", "/sync/{gw}/push", data=gzip.compress(body), headers={"Content-Encoding": "gzip"})
    assert answer.json()["accepted"] == 1


def test_an_answer_is_compressed_if_the_client_accepts_gzip(served):
    alice = served.client()
    bob = served.client("bob", alice.gateway)
    alice.push(*(delta(f"t{n}", {"title": "the same words over and over"}) for n in range(50)))
    answer = bob.call("GET", "/sync/{gw}/pull", params={"clientId": "bob"}, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.json()["deltas"]) == 50
    plain = bob.call("GET", "/sync/{gw}/pull", params={"clientId": "bob"}, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers


def test_a_rejected_push_lists_every_rejected_delta_and_stores_nothing(served):
    alice = served.client()
    good = delta("t1", {"n": 1})
    ahead = [delta(f"t{n}", {"n": n}, hlc=(wall_ms() + 60_000) << 16) for n in (2, 3)]
    answer = alice.push(good, *ahead)
    assert answer.status_code == 409
    assert answer.json()["code"] == "CLOCK_DRIFT"
    assert [each["deltaId"] for each in answer.json()["rejected"]] == [each["deltaId"] for each in ahead]
    assert alice.call("GET", "/sync/{gw}/metrics").json()["logSize"] == 0


def test_a_client_is_sent_only_columns_that_others_changed_since_its_cursor(served):
    alice = served.client("alice")
    bob = served.client("bob", alice.gateway)
    start, cursor = wall_ms(), "0"

    def push(client, ms, before, after):
        made = delta("t1", after, before=before, client=client.client_id, hlc=(start + ms) << 16)
        assert client.push(made, cursor=cursor).status_code == 200
        return made

    push(alice, 0, None, {"a": 0, "b": 0, "c": 0})
    push(bob, 1, {"b": 0}, {"b": 1})
    cursor = alice.pull().json()["serverHlc"]  # the arrival of the change of b
    wanted = push(bob, 2, {"c": 0}, {"c": 2})
    push(alice, 3, {"a": 0}, {"a": 3})
    assert alice.pull(cursor).json()["deltas"] == [wanted]


def test_a_losing_client_is_sent_a_winner_that_is_older_than_its_cursor(served):
    alice = served.client("alice")
    bob = served.client("bob", alice.gateway)
    start = wall_ms()
    winner = delta("t1", {"n": 1, "m": 1}, client="alice", hlc=(start + 2) << 16)
    alice.push(winner)
    cursor = bob.pull().json()["serverHlc"]
    assert bob.pull(cursor).json()["deltas"] == []
    loser = delta("t1", {"n": 2}, before={"n": 0}, client="bob", hlc=(start + 1) << 16)
    cursor = bob.push(loser, cursor=cursor).json()["serverHlc"]
    sent = [each for each in bob.pull(cursor).json()["deltas"] if each["op"] != "DELETE"]
    assert [(each["clientId"], each["columns"][:1]) for each in sent] == [("alice", [{"column": "n", "value": 1}])]


def test_a_client_that_pushes_after_each_pull_is_not_sent_its_own_rows(served):
    """Like the reference's client, it confirms no cursor: it pulls from the cursor of its last push."""
    alice = served.client("alice")
    bob = served.client("bob", alice.gateway)
    cursor = "0"
    for n in range(4):
        alice.push(delta(f"t{n}", {"n": n}, client="alice"))
        page = bob.pull(cursor).json()
        assert {each["clientId"] for each in page["deltas"]} == {"alice"}
        made = delta(f"b{n}", {"n": n}, client="bob")
        cursor = bob.push(made, cursor=page["serverHlc"]).json()["serverHlc"]
        assert int(cursor) >= int(page["serverHlc"])


def test_a_client_that_only_pushed_is_sent_its_rows_from_0_as_delete_and_insert(served):
    """Its database may still have the rows: the reference's client begins at 0 again after each reload."""
    alice = served.client("alice")
    alice.push(delta("t1", {"n": 1}, client="alice"))
    assert [each["op"] for each in alice.pull("0").json()["deltas"]] == ["DELETE", "INSERT"]


def test_a_change_that_is_older_than_its_rows_insert_is_sent_with_the_whole_row(served):
    """The client may keep the stamp of a DELETE between the two, and would reject an UPDATE with the change alone."""
    alice = served.client("alice")
    bob, carol = (served.client(name, alice.gateway) for name in ("bob", "carol"))
    start = wall_ms()
    inserted = delta("t1", {"n": 1}, client="alice", hlc=(start + 2) << 16)
    alice.push(inserted)
    cursor = bob.pull().json()["serverHlc"]
    older = delta("t1", {"m": 2}, before={"m": 0}, client="carol", hlc=start << 16)
    carol.push(older)
    deleted, *parts = bob.pull(cursor).json()["deltas"]
    assert (deleted["op"], deleted["hlc"]) == ("DELETE", older["hlc"])
    assert [(each["op"], each["columns"]) for each in parts] == [
        ("INSERT", older["columns"]),
        ("UPDATE", inserted["columns"]),
    ]


@pytest.mark.parametrize("shards", [{}, {"shards": {"notes": "second"}, "default": "first"}], ids=["whole", "sharded"])
def test_without_the_listed_deltas_a_push_is_accepted(spawn, shards):
    """Each check of a push rejects a delta of it: the client can set all of them aside at once."""
    alice = spawn(LAKESYNC_SHARD_CONFIG=json.dumps(shards) if shards else "").client("alice")
    columns = [{"name": "n", "type": "number"}, {"name": "team", "type": "string"}]
    alice.admin().call("POST", "/admin/schema/{gw}", json={"table": "todos", "columns": columns})
    rule = {"column": "team", "op": "eq", "value": "jwt:team"}
    buckets = [
        {"name": "team", "tables": ["todos"], "filters": [rule]},
        {"name": "all", "tables": ["notes"], "filters": []},
    ]
    alice.admin().call("POST", "/admin/sync-rules/{gw}", json={"version": 1, "buckets": buckets})
    bob = Client(alice.url, alice.gateway, "bob")
    assert bob.push(delta("hidden", {"team": "red"}, client="bob")).status_code == 200

    def of_alice(row, after, *, table="todos", **options):
        return delta(row, after, table=table, client="alice", **options)

    deep: list[object] = []
    for _ in range(101):
        deep = [deep]
    lacking = of_alice("t1", {"n": 1})
    del lacking["columns"]
    faults = {
        "an operation": (of_alice("t1", {"n": 1}) | {"op": "UPSERT"}, "VALIDATION_ERROR"),
        "a lacking field": (lacking, "VALIDATION_ERROR"),
        "an hlc's notation": (of_alice("t1", {"n": 1}) | {"hlc": "1e3"}, "VALIDATION_ERROR"),
        "half of a character": (of_alice("t1", {"n": 1}) | {"rowId": "\ud83d"}, "VALIDATION_ERROR"),
        "a value": (of_alice("t1", {"n": 1}) | {"columns": [{"column": "n", "value": deep}]}, "VALIDATION_ERROR"),
        "a row id": (of_alice("", {"n": 1}), "VALIDATION_ERROR"),
        "a column name": (of_alice("t1", {"n-1": 1}, table="notes"), "VALIDATION_ERROR"),
        "a sender": (delta("t1", {"n": 1}, client="bob"), "FORBIDDEN"),
        "the clock": (of_alice("t1", {"n": 1}, hlc=(wall_ms() + 60_000) << 16), "CLOCK_DRIFT"),
        "a type": (of_alice("t1", {"n": "one"}), "SCHEMA_ERROR"),
        "a column": (of_alice("t1", {"m": 1}), "SCHEMA_ERROR"),
        "a name in another case": (of_alice("t1", {"n": 1}, table="Todos"), "SCHEMA_ERROR"),
        "the write scope": (of_alice("hidden", {"n": 1}), "FORBIDDEN"),
        "the width of a row": (of_alice("wide", {f"c{n}": n for n in range(1001)}, table="notes"), "VALIDATION_ERROR"),
    }
    good = [of_alice("t1", {"n": 1}), of_alice("t1", {"n": 1}, table="notes")]
    answer = alice.push(good[0], *(made for made, _ in faults.values()), good[1])
    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    listed = sorted((each["deltaId"], each["code"]) for each in answer.json()["rejected"])
    assert listed == sorted((made["deltaId"], code) for made, code in faults.values())
    assert answer.json()["error"].count("more rejected") == 1
    assert alice.push(*good).json()["accepted"] == 2


def test_a_push_for_another_client_is_rejected(served):
    answer = served.client("mallory").push(delta("t1", {"n": 1}, client="alice"))
    assert answer.status_code == 403
    assert answer.json()["code"] == "FORBIDDEN"
    assert answer.json()["rejected"][0]["code"] == "FORBIDDEN"


def test_a_pull_for_another_client_is_rejected(served):
    mallory = served.client("mallory")
    answer = mallory.call("GET", "/sync/{gw}/pull", params={"clientId": "alice"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "query",
    [{"since": "-1"}, {"since": "x"}, {"since": str(1 << 64)}, {"limit": "0"}, {"limit": "many"}],
)
def test_a_pull_with_invalid_parameters_is_rejected(served, query):
    answer = served.client().call("GET", "/sync/{gw}/pull", params={"clientId": "client-1", **query})
    assert answer.status_code == 400
    assert answer.json()["code"] == "VALIDATION_ERROR"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"clientId": 1}', b"\xff\xfe"])
@pytest.mark.parametrize("path", ["/sync/{gw}/push", "/sync/{gw}/pull"])
def test_a_malformed_body_is_rejected(served, path, body):
    answer = served.client().call("POST", path, data=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["code"] == "VALIDATION_ERROR"


def test_a_body_that_is_not_protobuf_is_rejected(served):
    answer = served.client().call("POST", "/sync/{gw}/push", data=b"\xff" * 20, headers=PROTOBUF)
    assert answer.status_code == 400


def test_an_unknown_source_is_not_found(served):
    answer = served.client().pull(source="warehouse")
    assert answer.status_code == 404
    assert "warehouse" in answer.json()["error"]


def test_an_empty_source_means_no_source(served):
    """A form or a query string has an empty source if none was chosen."""
    alice = served.client("alice")
    alice.push(delta("t1", {"n": 1}, client="alice"))
    bob, carol, dan = (served.client(name, alice.gateway) for name in ("bob", "carol", "dan"))
    message = protobuf.encode_pull(SyncPull("dan", 0, 100, ""))
    for answer in (
        bob.pull(source=""),
        carol.call("POST", "/sync/{gw}/pull", json={"clientId": "carol", "source": ""}),
        dan.call("POST", "/sync/{gw}/pull", data=message, headers=PROTOBUF),
    ):
        assert answer.status_code == 200, answer.text
        assert b"t1" in answer.content


@pytest.mark.parametrize("has_pulled", [False, True])
def test_an_invalid_cursor_is_rejected_only_for_clients_that_can_resync(served, has_pulled):
    alice = served.client()
    cursor = alice.push(delta("t1", {"n": 1})).json()["serverHlc"]
    if has_pulled:
        alice.pull(alice.pull(cursor).json()["serverHlc"])
    ahead = str((wall_ms() + 3_600_000) << 16)
    query = {"since": ahead, "clientId": "client-1"}
    response = alice.call("GET", "/sync/{gw}/pull", params=query, headers={"X-LakeSync-Client": "python/0.1"})
    assert response.status_code == 409
    assert response.json()["code"] == "RESYNC_REQUIRED"
    assert [each["op"] for each in alice.pull(ahead).json()["deltas"]] == ["DELETE", "INSERT"]


def test_hlcs_may_be_integers(served):
    alice = served.client()
    made = delta("t1", {"n": 1})
    body = {"clientId": "client-1", "deltas": [{**made, "hlc": int(made["hlc"])}], "lastSeenHlc": 0}
    assert alice.call("POST", "/sync/{gw}/push", json=body).json()["accepted"] == 1


def test_responses_are_not_delayed_by_nagle(served, monkeypatch):
    """Linux delays acknowledgements by 40 ms each, for which Nagle's algorithm would wait."""
    transports, create = [], WriteCoalescingTransport.__init__

    def recorded(transport, inner, loop):
        transports.append(inner)
        create(transport, inner, loop)

    monkeypatch.setattr(WriteCoalescingTransport, "__init__", recorded)
    with requests.Session() as session:
        assert session.get(served.url + "/health", timeout=DEADLINE).ok
        (transport,) = transports
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_page_has_a_hundred_deltas_by_default(served):
    alice = served.client()
    alice.push(*(delta(f"t{n}", {"n": n}) for n in range(101)))
    page = served.client("bob", alice.gateway).pull().json()
    assert (len(page["deltas"]), page["hasMore"]) == (100, True)
    assert len(served.client("carol", alice.gateway).pull(limit=10_000).json()["deltas"]) == 101
    assert alice.pull(limit=10_001).status_code == 400


@pytest.mark.parametrize("change", [{"table": "no table"}, {"rowId": ""}, {"rowId": "x" * 513}, {"op": "UPSERT"}])
def test_a_malformed_delta_is_rejected_by_its_id(served, change):
    alice = served.client()
    good, bad = delta("t1", {"n": 1}), {**delta("t2", {"n": 2}), **change}
    answer = alice.push(good, bad)
    assert answer.status_code == 400
    assert [each["deltaId"] for each in answer.json()["rejected"]] == [bad["deltaId"]]
    assert alice.call("GET", "/sync/{gw}/metrics").json()["logSize"] == 0


def test_two_contents_with_one_id_in_a_push_are_rejected_by_that_id(served):
    client = served.client()
    one, other = delta("r1", {"x": 1}), delta("r2", {"x": 2})
    other["deltaId"] = one["deltaId"]
    answer = client.push(one, other)
    assert answer.status_code == 400, answer.text
    assert [each["deltaId"] for each in answer.json()["rejected"]] == [one["deltaId"]]
    malformed = {**one, "rowId": "", "deltaId": "f" * 64}
    answer = client.push(malformed, one, other)
    assert {each["deltaId"] for each in answer.json()["rejected"]} == {malformed["deltaId"], one["deltaId"]}
    assert client.pull().json()["deltas"] == []
    assert client.push(one, one).json()["accepted"] == 2


@pytest.mark.parametrize(
    "shards", [None, ShardMap({"todos": "one", "notes": "two"}, "rest")], ids=["one store", "sharded"]
)
def test_a_page_is_bounded_by_bytes_as_well_as_rows(serve, shards):
    server = serve(shards=shards)
    writer = server.client("writer")
    text = "x" * 300_000
    for row in range(40):
        table = ("todos", "notes", "others")[row % 3]
        assert writer.push(delta(f"r{row}", {"text": text}, table=table, client="writer")).ok
    reader = server.client("reader", writer.gateway)
    since, rows, pages = "0", [], 0
    while True:
        page = reader.pull(since, limit=10_000)
        assert len(page.content) < (4 << 20) + 400_000
        rows += [each["rowId"] for each in page.json()["deltas"]]
        since, pages = page.json()["serverHlc"], pages + 1
        if not page.json()["hasMore"]:
            break
    assert sorted(rows) == sorted(f"r{row}" for row in range(40))
    assert pages > 2


@pytest.mark.parametrize("limit", ["inf", "nan", "-inf", "1e999"])
def test_a_limit_that_is_not_an_integer_is_rejected(served, limit):
    assert served.client().pull(limit=limit).status_code == 400
