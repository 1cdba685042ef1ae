"""Limits of a request (P6), of a gateway (P7), of a client's rate, and of a request's duration."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
import requests

from gateway import admission
from lakesync.engine import EngineLimits
from lakesync.model.validation import MAX_ROW_BYTES
from lakesync.staging.shards import ShardMap
from tests.integration.gateway_support import DEADLINE, SERVICE, delta

KILOBYTE = 1024


@pytest.fixture(scope="module")
def narrow(serve):
    return serve(http_limits={"max_body_bytes": 64 * KILOBYTE})


def test_a_declared_body_above_the_limit_is_rejected_before_it_is_read(narrow):
    client = narrow.client()
    place = urlsplit(narrow.url)
    with socket.create_connection((place.hostname, place.port), DEADLINE) as connection:
        connection.sendall(
            f"POST /sync/{client.gateway}/push HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
            f"Content-Length: {100 << 20}\r\n\r\n".encode()
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_body_of_unknown_length_is_rejected_while_it_is_read(narrow):
    client = narrow.client()
    place = urlsplit(narrow.url)
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    with socket.create_connection((place.hostname, place.port), DEADLINE) as connection:
        connection.sendall(
            f"POST /sync/{client.gateway}/push HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        connection.sendall(chunk * 5)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_body_may_have_one_mebibyte_and_no_more(served):
    client = served.client()
    assert client.call("POST", "/sync/{gw}/push", data=b" " * (1 << 20)).status_code == 400
    assert client.call("POST", "/sync/{gw}/push", data=b" " * ((1 << 20) + 1)).status_code == 413


def test_a_body_that_decompresses_above_the_limit_is_rejected(narrow):
    packed = gzip.compress(b" " * (50 << 20))
    assert len(packed) < 64 * KILOBYTE
    answer = narrow.client().call("POST", "/sync/{gw}/push", data=packed, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 413
    assert answer.json()["code"] == "VALIDATION_ERROR"


_EMPTY_PUSH = b'{"clientId":"client-1","lastSeenHlc":"0","deltas":[]}'


@pytest.mark.parametrize(
    "body",
    [_EMPTY_PUSH, gzip.compress(_EMPTY_PUSH)[:-4], gzip.compress(_EMPTY_PUSH) + gzip.compress(b" ")],
    ids=["other", "short", "two members"],
)
def test_a_broken_gzip_body_is_rejected(narrow, body):
    answer = narrow.client().call("POST", "/sync/{gw}/push", data=body, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 400
    assert "gzip" in answer.json()["error"]


def test_an_unknown_content_encoding_is_rejected(narrow):
    answer = narrow.client().call("POST", "/sync/{gw}/push", data=b"{}", headers={"Content-Encoding": "br"})
    assert answer.status_code == 400
    assert "'br'" in answer.json()["error"]


def test_more_than_ten_thousand_deltas_are_rejected(serve):
    roomy = serve(http_limits={"max_body_bytes": 16 << 20})
    client = roomy.client()
    small = delta("t", {"n": 1})
    body = {"clientId": "client-1", "deltas": [small] * 10_001, "lastSeenHlc": "0"}
    answer = client.call("POST", "/sync/{gw}/push", data=json.dumps(body))
    assert answer.status_code == 400
    assert "10001" in answer.json()["error"]


@pytest.mark.parametrize("shards", [None, ShardMap({"others": "others"}, "rest")], ids=["one store", "sharded"])
def test_a_row_has_at_most_a_thousand_columns_over_all_pushes(serve, shards):
    wide = serve(shards=shards)
    client = wide.client()
    first = {f"a{number}": number for number in range(999)}
    assert client.push(delta("t", first)).status_code == 200
    more = delta("t", {**first, "a0": 7, "b": 1, "c": 1}, before=first)
    beside = delta("t", {"n": 1}, table="others")
    answer = client.push(beside, more)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("row 't' of table 'todos' would have 1001 columns, at most 1000")
    assert [each["deltaId"] for each in answer.json()["rejected"]] == [more["deltaId"]]
    other = wide.client("client-2", client.gateway)
    assert {each["table"] for each in other.pull().json()["deltas"]} == {"todos"}
    assert client.push(beside, delta("t", {**first, "b": 1}, before=first)).status_code == 200


@pytest.mark.parametrize("shards", [None, ShardMap({"others": "others"}, "rest")], ids=["one store", "sharded"])
def test_a_row_has_at_most_eight_mebibytes_over_all_pushes(serve, shards):
    large = serve(shards=shards)
    client = large.client()
    value = "a" * (1_000_000 - 2)  # as JSON, with its quotes, a million bytes
    before = {f"a{number}": value for number in range(MAX_ROW_BYTES // 1_000_000)}
    for number, name in enumerate(before):
        part = dict(list(before.items())[: number + 1])
        pushed = delta("t", part, before={each: value for each in part if each != name})
        assert client.push(pushed).status_code == 200
    more = delta("t", {**before, "b": value}, before=before)
    answer = client.push(delta("t", {"n": 1}, table="others"), more)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("row 't' of table 'todos' would have 9000000 bytes, at most 8388608")
    assert [each["deltaId"] for each in answer.json()["rejected"]] == [more["deltaId"]]
    assert client.push(delta("t", {**before, "a0": "small"}, before=before)).status_code == 200
    assert client.push(delta("t", {**before, "a0": "small", "b": value}, before=before)).status_code == 200


def test_many_query_parameters_are_checked_in_linear_time(served):
    """Each was compared with all others, which took 1.6 s of the event loop's time."""
    client = served.client()
    assert client.pull().status_code == 200  # creates the gateway
    query = "&".join(f"{number:x}" for number in range(12_000))
    began = time.process_time()
    assert client.call("GET", f"/sync/{{gw}}/pull?{query}").status_code == 200
    assert time.process_time() - began < 0.5
    assert client.call("GET", f"/sync/{{gw}}/pull?{query}&0").status_code == 400


def test_a_client_above_its_rate_limit_gets_retry_after(serve, monkeypatch):
    monkeypatch.setattr(admission, "_WINDOW_SECONDS", 600)  # the window does not end before the rejection
    slow = serve(http_limits={"requests_per_second": 10 / 600})
    greedy = slow.client("greedy")
    statuses = [greedy.pull().status_code for _ in range(11)]
    assert statuses == [200] * 10 + [429]
    answer = greedy.pull()
    assert answer.json()["code"] == "RATE_LIMITED"
    assert 0 < int(answer.headers["retry-after"]) <= 600
    assert slow.client("modest", greedy.gateway).pull().status_code == 200
    assert slow.client("greedy").pull().status_code == 200  # a client of another gateway


def test_a_lower_limit_of_deltas_does_not_apply_to_a_connectors_pushes(serve):
    small = serve(limits=EngineLimits(max_deltas=2))
    client = small.client()
    assert client.push(*(delta(f"t{number}", {"n": 1}) for number in range(3))).status_code == 400
    polled = [delta(f"t{number}", {"n": 1}, client="connector:desk") for number in range(3)]
    answer = requests.post(
        f"{small.url}/internal/push/{client.gateway}",
        json={"clientId": "connector:desk", "deltas": polled},
        headers={"Authorization": f"Bearer {SERVICE}"},
        timeout=DEADLINE,
    )
    assert answer.status_code == 200, answer.text


def test_a_full_gateway_rejects_pushes_and_others_accept_them(serve):
    full = serve(limits=EngineLimits(max_backpressure_bytes=1))
    client = full.client()
    assert client.push(delta("t1", {"n": 1})).status_code == 200
    answer = client.push(delta("t2", {"n": 1}))
    assert answer.status_code == 503
    assert answer.json()["code"] == "BACKPRESSURE_ERROR"
    assert int(answer.headers["retry-after"]) > 0
    assert full.client().push(delta("t1", {"n": 1})).status_code == 200


@pytest.mark.parametrize("shards", [None, ShardMap({"todos": "todos"}, "rest")], ids=["one store", "sharded"])
def test_a_push_past_its_deadline_is_not_committed_later(serve, shards):
    """Its repeat may be rejected, and then nothing of it may be stored."""
    hasty = serve(http_limits={"request_timeout_seconds": 3.0}, shards=shards)
    client = hasty.client()
    first = delta("t1", {"n": 1})
    assert client.push(first).status_code == 200
    store = hasty.engine.store if shards is None else hasty.engine.store.store_of("todos")
    held, holds = threading.Event(), threading.Event()
    store.submit(client.gateway, lambda _: holds.set() or held.wait(DEADLINE))
    assert holds.wait(DEADLINE)
    late = delta("t2", {"n": "two"})
    try:
        answer = client.push(late)
        assert answer.status_code == 503
        assert answer.json()["code"] == "STAGING_UNAVAILABLE"
        assert "repeat" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) > 0
    finally:
        held.set()
    schema = {"table": "todos", "columns": [{"name": "n", "type": "number"}]}
    admin = client.admin()
    assert admin.call("POST", "/admin/schema/{gw}", json=schema).status_code == 200
    refused = client.push(late)
    assert (refused.status_code, [each["deltaId"] for each in refused.json()["rejected"]]) == (422, [late["deltaId"]])
    rows = hasty.client("other", client.gateway).pull().json()["deltas"]
    assert [each["rowId"] for each in rows] == ["t1"]


@pytest.mark.parametrize("shards", [None, ShardMap({"todos": "todos"}, "rest")], ids=["one store", "sharded"])
def test_a_repeated_push_is_accepted_under_new_limits_and_rules(serve, shards):
    """Its answer may have been lost: a client that is now rejected would undo changes that the gateway has stored."""
    server = serve(shards=shards)
    client = server.client()
    kept, beside = delta("t1", {"n": "one"}), delta("d1", {"n": "one"}, table="default")
    assert client.push(kept, beside).status_code == 200
    schema = {"table": "todos", "columns": [{"name": "n", "type": "number"}]}
    admin = client.admin()
    assert admin.call("POST", "/admin/schema/{gw}", json=schema).status_code == 200
    assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "rules"}).status_code == 200
    nothing = {"version": 1, "buckets": [{"name": "none", "tables": ["absent"], "filters": []}]}
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=nothing).status_code == 200
    again = client.push(kept, beside)
    assert (again.status_code, again.json()["accepted"]) == (200, 2)
    new = delta("t2", {"n": "two"})
    assert [each["deltaId"] for each in client.push(kept, new).json()["rejected"]] == [new["deltaId"]]
