"""The common headers and errors of all answers, and their log lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import requests
import websockets.sync.client

from gateway import admission
from tests.integration.gateway.operations import OPERATIONS
from tests.integration.gateway_support import DEADLINE, SECRET, SERVICE, delta, raw, until

ORIGIN = "https://app.example"


def test_a_request_id_is_returned(served):
    client = served.client()
    answer = client.call("GET", "/sync/{gw}/metrics", headers={"X-Request-Id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    refused = client.call("GET", "/admin/schema/{gw}", headers={"X-Request-Id": "abc-2"})
    assert refused.headers["x-request-id"] == refused.json()["requestId"] == "abc-2"


@pytest.mark.parametrize("given", [None, "", "has space", "x" * 129, "a\tb"])
def test_an_invalid_request_id_is_replaced(served, given):
    headers = {} if given is None else {"X-Request-Id": given}
    answer = requests.get(served.url + "/health", headers=headers, timeout=DEADLINE)
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize("path", ["/health", "/sync/gw/pull", "/nowhere"])
def test_every_answer_carries_the_security_headers(served, path):
    headers = requests.get(served.url + path, timeout=DEADLINE).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "server" not in headers


def test_an_unknown_path_or_method_is_answered_in_the_common_error_form(served):
    missing = requests.get(served.url + "/nowhere", timeout=DEADLINE)
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
    method = requests.delete(served.url + "/health", timeout=DEADLINE)
    assert (method.status_code, method.json()["code"]) == (405, "VALIDATION_ERROR")
    assert method.headers["allow"] == "GET, HEAD"
    several = requests.put(served.url + "/admin/schema/gw", timeout=DEADLINE)
    assert (several.status_code, several.headers["allow"]) == (405, "GET, HEAD, POST")


def test_an_allowed_origin_gets_cors_headers(serve):
    strict = serve(allowed_origins=(ORIGIN,))
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-lakesync-client",
    }
    preflight = requests.options(strict.url + "/sync/gw/push", headers=asked, timeout=DEADLINE)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    refused = requests.get(strict.url + "/sync/gw/pull", headers={"Origin": ORIGIN}, timeout=DEADLINE)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN
    assert "X-Checkpoint-Hlc" in refused.headers["access-control-expose-headers"]
    stranger = {**asked, "Origin": "https://elsewhere.example"}
    assert requests.options(strict.url + "/sync/gw/push", headers=stranger, timeout=DEADLINE).status_code == 400


def test_health_and_readiness_are_open(served):
    for prefix in ("", "/v1"):
        assert requests.get(f"{served.url}{prefix}/health", timeout=DEADLINE).json() == {"status": "ok"}
        assert requests.get(f"{served.url}{prefix}/ready", timeout=DEADLINE).json() == {"status": "ready"}


def test_metrics_count_pushed_pulled_and_unflushed_deltas(served):
    client = served.client()
    client.push(delta("t1", {"n": 1}), delta("t2", {"n": 1}))
    served.client("bob", client.gateway).pull()

    def sample(name: str) -> float:
        text = requests.get(served.url + "/metrics", timeout=DEADLINE).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    assert sample("lakesync_pushed_deltas_total") >= 2
    assert sample("lakesync_pulled_deltas_total") >= 2
    assert sample(f'lakesync_unflushed_deltas{{gateway="{client.gateway}"') == 2
    assert sample(f'lakesync_unflushed_bytes{{gateway="{client.gateway}"') > 0
    assert sample("lakesync_backpressure_limit_bytes ") >= 1 << 20
    assert sample(f'lakesync_last_arrival_timestamp_seconds{{gateway="{client.gateway}"') > 1.7e9
    assert sample(f'lakesync_oldest_unflushed_timestamp_seconds{{gateway="{client.gateway}"') > 1.7e9
    client.call("GET", "/admin/schema/{gw}")
    assert sample('lakesync_errors_total{code="FORBIDDEN"}') >= 1
    assert sample('lakesync_requests_total{method="POST",route="/sync/{gateway}/push",status="200"}') >= 1
    assert sample('lakesync_request_seconds_count{route="/sync/{gateway}/push"}') >= 1


def test_metrics_require_the_configured_token(serve):
    server = serve(metrics_token="of-prometheus")
    client = server.client()
    client.push(delta("t1", {"n": 1}))

    def ask(path, **headers):
        return requests.get(server.url + path, headers=headers, timeout=DEADLINE)

    for path in ("/metrics", "/v1/metrics"):
        for headers in ({}, {"Authorization": "Bearer of-somebody"}, {"Authorization": f"Bearer {SERVICE}"}):
            refused = ask(path, **headers)
            assert (refused.status_code, refused.json()["code"]) == (401, "AUTH_ERROR")
            assert client.gateway not in refused.text
        assert f'gateway="{client.gateway}"' in ask(path, Authorization="Bearer of-prometheus").text
    assert ask("/health").status_code == ask("/ready").status_code == 200


def test_an_internal_error_reveals_no_details(served, monkeypatch):
    client = served.client()
    client.pull()

    def broken(*_):
        raise RuntimeError("the inner detail")

    monkeypatch.setattr(served.engine.store, "submit", broken)
    answer = client.push(delta("t1", {"n": 1}))
    assert answer.status_code == 500
    assert answer.json()["code"] == "INTERNAL_ERROR"
    assert "inner detail" not in answer.text


def test_each_request_is_one_line_of_json(spawn):
    process = spawn()
    client = process.client("alice")
    client.push(delta("t1", {"n": 1}, client="alice"))
    client.call("GET", "/admin/schema/{gw}")
    lines = until(
        lambda: len(found := [line for line in process.lines() if line["event"] == "request"]) >= 2 and found,
        "two log lines",
    )
    pushed, refused = lines
    assert pushed["route"] == "/sync/{gateway}/push"
    assert (pushed["client"], pushed["gateway"], pushed["deltas"], pushed["status"]) == ("alice", "gw", 1, 200)
    assert pushed["bytes_in"] > 0
    assert pushed["bytes_out"] > 0
    assert pushed["ms"] > 0
    assert len(pushed["request_id"]) == 32
    assert (refused["status"], refused["code"]) == (403, "FORBIDDEN")


def test_the_openapi_document_names_every_route(served):
    for prefix in ("", "/v1"):
        document = requests.get(f"{served.url}{prefix}/openapi.json", timeout=DEADLINE).json()
        named = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
        assert named == {(operation.method, operation.path) for operation in OPERATIONS}


@pytest.mark.parametrize("path", ["/health", "/sync/gw/metrics", "/sync/gw/push"])
def test_head_requests_are_answered_like_get_without_a_body(served, path):
    asked, plain = (getattr(requests, name)(served.url + path, timeout=DEADLINE) for name in ("head", "get"))
    assert (asked.status_code, asked.content) == (plain.status_code, b"")
    assert asked.headers.get("allow") == plain.headers.get("allow")


def test_a_long_answer_is_compressed_if_the_client_accepts_gzip(served):
    client = served.client()
    client.push(*(delta(f"t{n}", {"title": "the same words again"}) for n in range(100)))
    reader = served.client("reader", client.gateway)
    packed = reader.call("GET", "/sync/{gw}/pull", params={"since": "0"}, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["vary"]
    assert int(packed.headers["content-length"]) < len(packed.content) / 2
    plain = reader.call("GET", "/sync/{gw}/pull", params={"since": "0"}, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert len(packed.json()["deltas"]) == 100


def test_errors_of_every_layer_carry_the_same_headers(serve, monkeypatch):
    monkeypatch.setattr(admission, "_WINDOW_SECONDS", 600)  # the window does not end before the rejection
    strict = serve(allowed_origins=(ORIGIN,), http_limits={"requests_per_second": 1 / 600, "max_body_bytes": 1000})
    client, greedy = strict.client(), strict.client("greedy")
    greedy.pull()

    def broken(*_):
        raise RuntimeError("the inner detail")

    def answers() -> Iterator[tuple[int, requests.Response]]:
        headers = {"Origin": ORIGIN}
        yield 413, client.call("POST", "/sync/{gw}/push", data=b"x" * 2000, headers=headers)
        yield 429, greedy.call("GET", "/sync/{gw}/pull", headers=headers)
        yield 404, requests.get(strict.url + "/nowhere", headers=headers, timeout=DEADLINE)
        yield 405, requests.put(strict.url + "/health", headers=headers, timeout=DEADLINE)
        yield 401, requests.get(strict.url + "/sync/gw/pull", headers=headers, timeout=DEADLINE)
        asked = {**headers, "Access-Control-Request-Method": "POST"}
        yield 200, requests.options(strict.url + "/sync/gw/push", headers=asked, timeout=DEADLINE)
        monkeypatch.setattr(strict.engine.store, "backlog", broken)
        yield 500, requests.get(strict.url + "/ready", headers=headers, timeout=DEADLINE)

    for status, answer in answers():
        assert answer.status_code == status
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"]
        assert answer.headers["x-request-id"]
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        if status >= 400:
            assert answer.json()["requestId"] == answer.headers["x-request-id"]


def test_pipelined_requests_are_answered_in_order(served):
    client = served.client()
    body = json.dumps({"clientId": client.client_id, "deltas": [], "lastSeenHlc": "0"})
    push = [
        f"POST /sync/{client.gateway}/push HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {client.token}",
        "Content-Type: application/json",
        "Expect: 100-continue",
        f"Content-Length: {len(body)}",
    ]
    last = ["GET /health HTTP/1.1", "Host: x", "Connection: close"]
    rest = "\r\n".join([*push, "", body + last[0], *last[1:], "", ""]).encode()
    status, headers, answers = raw(served.url, "HEAD /console HTTP/1.1", "Host: x", body=rest)
    assert (status, int(headers["content-length"]) > 1000) == (200, True)
    went_on, pushed, healthy = answers.split(b"HTTP/1.1 ")[1:]
    assert answers.startswith(b"HTTP/1.1 "), "a HEAD has no body"
    assert went_on == b"100 Continue\r\n\r\n"
    assert pushed.startswith(b"200 OK")
    assert pushed.endswith(b'"deltas":[]}')
    assert healthy.endswith(b'{"status":"ok"}')


def test_request_logs_name_the_tokens_client_whatever_the_request_names(spawn):
    process = spawn()
    alice = process.client("alice")
    for route, body in [
        ("push", {"deltas": [delta("t1", {"n": 1}, client="bob")], "lastSeenHlc": "0"}),
        ("pull", {"sinceHlc": "0"}),
        ("action", {"actions": []}),
    ]:
        assert alice.call("POST", f"/sync/{{gw}}/{route}", json={"clientId": "bob", **body}).status_code == 403
    assert alice.call("GET", "/sync/{gw}/checkpoint", params={"clientId": "bob"}).status_code == 403
    imported = {"clientId": "import:alice", "deltas": [delta("t1", {"n": 1}, client="import:alice")]}
    assert alice.call("POST", "/sync/{gw}/push", json=imported).status_code == 200
    lines = until(
        lambda: len(found := [line for line in process.lines() if line["event"] == "request"]) == 5 and found, "the log"
    )
    assert [line["client"] for line in lines] == ["alice"] * 4 + ["import:alice"]


def test_request_logs_contain_the_error_code_and_no_token(spawn):
    process = spawn(LAKESYNC_LIMITS_MAX_BODY_BYTES="1000")
    client = process.client("alice")
    rejected = delta("t1", {"n": 1}, client="alice", table="no table")
    client.push(rejected)
    client.call("POST", "/sync/{gw}/push", data=b"x" * 2000)
    client.call("GET", "/sync/{gw}/schema", params={"table": "none", "token": client.token})
    requests.get(process.url + "/sync/gw/pull", headers={"Authorization": "Bearer " + "a.b.c"}, timeout=DEADLINE)
    live = process.url.replace("http", "ws") + "/sync/gw/ws?token=" + client.token
    with websockets.sync.client.connect(live):
        pass
    lines = until(
        lambda: len(found := [line for line in process.lines() if line["event"] == "request"]) >= 4 and found, "the log"
    )
    assert [(line["status"], line["code"]) for line in lines[:4]] == [
        (400, "VALIDATION_ERROR"),
        (413, "VALIDATION_ERROR"),
        (404, "NOT_FOUND"),
        (401, "AUTH_ERROR"),
    ]
    until(lambda: "/sync/{gateway}/ws" in process.log.read_text(), "the line of the connection")
    text = process.log.read_text()
    assert client.token.rpartition(".")[2] not in text
    assert "a.b.c" not in text
    assert SECRET not in text
