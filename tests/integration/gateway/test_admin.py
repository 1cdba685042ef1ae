"""Schemas, rules and flush requests over HTTP."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import msgspec
import pytest
import requests
from typer.testing import CliRunner
from websockets.sync.client import connect

from lakesync.analysis.marks import REPORT, DeadLetters, Report
from lakesync.cli.app import app
from lakesync.model.delta import id_number
from lakesync.model.types import SyncPull
from lakesync.staging.records import Checkpoint
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, decode_frame, encode_frame
from tests.integration.gateway.operations import DESCRIPTION
from tests.integration.gateway_support import DEADLINE, delta, until

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "n", "type": "number"}]}
MINE = {
    "version": 1,
    "buckets": [
        {"name": "mine", "tables": ["todos"], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
    ],
}


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_schema_is_registered_evolved_and_read(served, prefix):
    client = served.client()
    admin = client.admin()
    saved = admin.call("POST", prefix + "/admin/schema/{gw}", json=TODOS)
    assert saved.json() == {"saved": True, "version": 1}
    grown = {**TODOS, "columns": [*TODOS["columns"], {"name": "done", "type": "boolean"}]}
    assert admin.call("POST", prefix + "/admin/schema/{gw}", json=grown).json() == {"saved": True, "version": 2}
    read = client.call("GET", prefix + "/sync/{gw}/schema", params={"table": "todos"}).json()
    assert (read["table"], read["version"]) == ("todos", 2)
    assert [column["name"] for column in read["schema"]["columns"]] == ["title", "n", "done"]
    assert admin.call("GET", prefix + "/admin/schema/{gw}").json() == {"schemas": [read], "tables": None}
    assert client.push(delta("n1", {"x": 1}, table="notes"), delta("t1", {"n": 1})).ok
    listed = admin.call("GET", prefix + "/admin/schema/{gw}", params={"tables": "true"}).json()
    assert listed == {"schemas": [read], "tables": ["notes", "todos"]}


@pytest.mark.parametrize("references", ["users.name", {"table": "users", "column": "name", "cardinality": "many"}])
def test_both_forms_of_a_column_reference_are_documented_and_accepted(served, references):
    body = {"table": "todos", "columns": [{"name": "owner", "type": "string", "references": references}]}
    described = DESCRIPTION["paths"]["/admin/schema/{gateway}"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    jsonschema.validate(body, described | {"components": DESCRIPTION["components"]})
    client = served.client()
    assert client.admin().call("POST", "/admin/schema/{gw}", json=body).ok
    read = client.call("GET", "/sync/{gw}/schema", params={"table": "todos"}).json()
    assert read["schema"]["columns"][0]["references"] == "users.name"


def test_a_retired_schema_checks_nothing_and_its_successor_has_a_higher_version(served):
    client = served.client()
    admin = client.admin()
    admin.call("POST", "/admin/schema/{gw}", json=TODOS)
    retired = admin.call("DELETE", "/admin/schema/{gw}/todos")
    assert retired.json() == {"retired": True, "version": 2}
    assert client.call("GET", "/sync/{gw}/schema", params={"table": "todos"}).status_code == 404
    assert admin.call("DELETE", "/admin/schema/{gw}/todos").status_code == 404
    assert client.call("DELETE", "/admin/schema/{gw}/todos").status_code == 403
    other = {"table": "todos", "columns": [{"name": "n", "type": "string"}]}
    assert admin.call("POST", "/admin/schema/{gw}", json=other).json() == {"saved": True, "version": 3}


def test_an_unknown_schema_is_not_found(served):
    client = served.client()
    assert client.call("GET", "/sync/{gw}/schema", params={"table": "todos"}).status_code == 404
    assert client.call("GET", "/sync/{gw}/schema").status_code == 400


@pytest.mark.parametrize(
    "schema",
    [
        {"table": "todos", "columns": [{"name": "title", "type": "number"}, {"name": "n", "type": "number"}]},
        {"table": "todos", "columns": [{"name": "title", "type": "string"}]},
        {"table": "no identifier", "columns": [{"name": "title", "type": "string"}]},
        {"table": "todos"},
        [],
    ],
)
def test_a_schema_change_that_is_not_additive_is_rejected(served, schema):
    admin = served.client().admin()
    admin.call("POST", "/admin/schema/{gw}", json=TODOS)
    answer = admin.call("POST", "/admin/schema/{gw}", json=schema)
    assert answer.status_code == 400
    assert answer.json()["code"] == "SCHEMA_ERROR"


@pytest.mark.parametrize("columns", [{"unknown": 1}, {"n": "text"}])
def test_a_push_that_violates_the_schema_is_rejected(served, columns):
    client = served.client()
    client.admin().call("POST", "/admin/schema/{gw}", json=TODOS)
    wrong = delta("t1", columns)
    answer = client.push(delta("t2", {"n": 1}), wrong)
    assert answer.status_code == 422
    assert answer.json()["code"] == "SCHEMA_ERROR"
    assert [each["deltaId"] for each in answer.json()["rejected"]] == [wrong["deltaId"]]


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_rules_are_set_and_read(served, prefix):
    admin = served.client().admin()
    path = prefix + "/admin/sync-rules/{gw}"
    assert admin.call("GET", path).json() == {"rules": None, "rulesVersion": 0}
    for _ in range(2):  # equal rules do not change the version
        assert admin.call("POST", path, json=MINE).json() == {"saved": True, "rulesVersion": 1}
    read = admin.call("GET", path).json()
    assert read["rulesVersion"] == 1
    assert read["rules"]["buckets"][0]["filters"][0]["value"] == "jwt:sub"


def test_malformed_rules_are_rejected(served):
    admin = served.client().admin()
    rules = {
        "version": 1,
        "buckets": [{**MINE["buckets"][0], "filters": [{"column": "a", "op": "like", "value": "b"}]}],
    }
    answer = admin.call("POST", "/admin/sync-rules/{gw}", json=rules)
    assert answer.status_code == 400
    assert answer.json()["code"] == "VALIDATION_ERROR"
    assert admin.call("POST", "/admin/sync-rules/{gw}", data=b"{").status_code == 400


def test_rules_hide_the_rows_of_others(served):
    alice = served.client("alice")
    bob = served.client("bob", alice.gateway)
    alice.admin().call("POST", "/admin/sync-rules/{gw}", json=MINE)
    alice.push(delta("t1", {"owner": "bob"}, client="alice"), delta("t2", {"owner": "carol"}, client="alice"))
    assert [each["rowId"] for each in bob.pull().json()["deltas"]] == ["t1"]


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_flush_is_requested_in_staging(served, prefix):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    answer = client.admin().call("POST", prefix + "/admin/flush/{gw}")
    assert answer.status_code == 202
    assert answer.json() == {"requested": True}
    (waiting,) = [shard for shard in served.engine.store.backlog() if shard.gateway == client.gateway]
    assert waiting.flush_requested_ms is not None


def test_a_flush_request_with_wait_returns_the_snapshot(served):
    client = served.client()
    pushed = delta("t1", {"n": 1})
    client.push(pushed)
    admin, store = client.admin(), served.engine.store
    assert admin.call("POST", "/admin/flush/{gw}?wait=0.01").json() == {"requested": True, "flushed": False}
    assert admin.call("POST", "/admin/flush/{gw}?wait=soon").status_code == 400

    def pipeline():
        batch = store.plan(client.gateway, "main", 10)
        store.confirm(batch.batch_id, 1, id_number(pushed["deltaId"]), 77)

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(admin.call, "POST", "/admin/flush/{gw}?wait=20")
        pipeline()
        assert answer.result().json() == {"requested": True, "flushed": True, "snapshotId": "77"}
    again = admin.call("POST", "/admin/flush/{gw}?wait=20")
    assert again.json() == {"requested": True, "flushed": True, "snapshotId": "77"}, "nothing is unflushed"

    store.put_mark(REPORT, msgspec.json.encode(Report(0)).decode())
    merged = [admin.call("POST", "/admin/flush/{gw}?wait=20").json()["merged"]]
    held = store.cut_point(client.gateway)
    assert store.publish_checkpoint(Checkpoint(client.gateway, held.epoch, held.arrival, 0, (), 0))
    merged.append(admin.call("POST", "/admin/flush/{gw}?wait=20").json()["merged"])
    assert merged == [False, True], "the tables and the checkpoint follow"


def test_admin_metrics_include_the_clients_metrics(served):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    metrics = client.admin().call("GET", "/admin/metrics/{gw}").json()
    assert client.call("GET", "/sync/{gw}/metrics").json().items() <= metrics.items()


def test_dead_letters_are_counted_by_kind_and_place_with_the_oldest(served, tmp_path):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    mine = DeadLetters("value", "todos", client.gateway, 3, 1_700_000_000_000)
    of_all = DeadLetters("destination", "shop/copy!todos", "", 1, 1_700_000_001_000)
    other = DeadLetters("value", "todos", "another", 7, 1)
    report = Report(int(time.time() * 1000), dead_letters=(mine, of_all, other))
    served.engine.store.put_mark(REPORT, msgspec.json.encode(report).decode())
    dead_letters = client.admin().call("GET", "/admin/metrics/{gw}").json()["deadLetters"]
    assert dead_letters == [msgspec.to_builtins(each) for each in (mine, of_all)]

    text = requests.get(served.url + "/metrics", timeout=DEADLINE).text
    of_gateway = f'{{gateway="{client.gateway}",kind="value",name="todos"}}'
    assert f"lakesync_dead_letters{of_gateway} 3.0" in text
    assert f"lakesync_dead_letters_timestamp_seconds{of_gateway} 1.7e+09" in text
    assert text.count('lakesync_dead_letters{gateway="",kind="destination",name="shop/copy!todos"} 1.0') == 1

    (tmp_path / "token").write_text(client.admin().token)
    address = ("--url", served.url, "--gateway", client.gateway, "--token-file", str(tmp_path / "token"))
    shown = CliRunner().invoke(app, ["status", *address, "--data", str(tmp_path)], env={"LAKESYNC_CONFIG": ""})
    assert "3 of value todos, since 2023-11-14" in shown.stdout, (shown.output, shown.exception)
    assert "1 of destination shop/copy!todos" in shown.stdout


def test_admin_metrics_list_clients_that_are_behind_and_unflushed_tables(served):
    alice = served.client("alice")
    bob = served.client("bob", alice.gateway)
    alice.push(delta("t1", {"n": 1}, client="alice"), delta("t2", {"n": 1}, client="alice"))
    since = bob.pull().json()["serverHlc"]
    alice.push(delta("u1", {"n": 1}, client="alice", table="users"))
    admin = alice.admin()
    metrics = admin.call("GET", "/admin/metrics/{gw}", params={"tables": "true"}).json()
    mute, behind = metrics["clients"]
    assert (mute["clientId"], mute["pulledMs"], mute["cursorHlc"], mute["cursorMs"]) == ("alice", None, "0", None)
    assert (behind["clientId"], behind["cursorHlc"], behind["pushedMs"]) == ("bob", since, None)
    assert behind["cursorMs"] < int(metrics["lastArrivalHlc"]) >> 16
    assert mute["seenMs"] >= behind["seenMs"] > 1.7e12
    assert [(each["table"], each["deltaCount"]) for each in metrics["tables"]] == [("todos", 2), ("users", 1)]
    assert sum(each["byteSize"] for each in metrics["tables"]) == metrics["byteSize"]
    metrics = admin.call("GET", "/admin/metrics/{gw}", params={"clients": "1"}).json()
    assert ([each["clientId"] for each in metrics["clients"]], metrics["tables"]) == (["alice"], None)


@pytest.mark.parametrize("query", [{"clients": "1001"}, {"clients": "-1"}, {"clients": "٣"}, {"tables": "yes"}])
def test_invalid_metrics_parameters_are_rejected(served, query):
    assert served.client().admin().call("GET", "/admin/metrics/{gw}", params=query).status_code == 400


def test_a_broadcast_counts_as_sent_in_the_metrics(served):
    alice = served.client("alice")
    bob = served.client("bob", alice.gateway)
    alice.push(delta("t1", {"n": 1}, client="alice"))
    url = f"{served.url.replace('http', 'ws')}/sync/{alice.gateway}/ws"
    with connect(url, additional_headers={"Authorization": f"Bearer {bob.token}"}) as live:
        live.send(encode_frame(FrameTag.PULL, protobuf.encode_pull(SyncPull("bob", 0, 100))))
        pulled = protobuf.decode_response(live.recv(DEADLINE))
        alice.push(delta("t2", {"n": 1}, client="alice"))
        _, body = decode_frame(live.recv(DEADLINE))
        broadcast = protobuf.decode_response(body)
        assert broadcast.server_hlc > pulled.server_hlc
        (status,) = [each for each in _clients(alice) if each["clientId"] == "bob"]
        assert (status["connected"], status["cursorHlc"]) == (True, str(broadcast.server_hlc))
    until(lambda: not any(each["connected"] for each in _clients(alice)), "the end of the connection")
    (status,) = [each for each in _clients(alice) if each["clientId"] == "bob"]
    assert (status["cursorHlc"], status["behindMs"]) == (str(broadcast.server_hlc), 0)


def _clients(client) -> list[dict]:
    return client.admin().call("GET", "/admin/metrics/{gw}").json()["clients"]
