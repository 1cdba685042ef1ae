"""What every answer carries, and what is logged of it."""

from __future__ import annotations

import pytest
import requests

from gateway.routes import OPERATIONS
from tests.integration.gateway_support import DEADLINE, delta, until

ORIGIN = "https://app.example"


def test_a_request_id_is_taken_and_given_back(served):
    client = served.client()
    answer = client.call("GET", "/sync/{gw}/metrics", headers={"X-Request-Id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    refused = client.call("GET", "/admin/schema/{gw}", headers={"X-Request-Id": "abc-2"})
    assert refused.headers["x-request-id"] == refused.json()["requestId"] == "abc-2"


@pytest.mark.parametrize("given", [None, "", "has space", "x" * 129, "a\tb"])
def test_a_request_id_of_another_form_is_replaced(served, given):
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


def test_an_unknown_path_and_method_have_the_form_of_every_error(served):
    missing = requests.get(served.url + "/nowhere", timeout=DEADLINE)
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
    method = requests.delete(served.url + "/health", timeout=DEADLINE)
    assert (method.status_code, method.json()["code"]) == (405, "VALIDATION_ERROR")
    assert method.headers["allow"]


def test_an_allowed_origin_may_ask_and_read(serve):
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


def test_metrics_count_what_was_done(served):
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
    assert sample(f'lakesync_last_arrival_timestamp_seconds{{gateway="{client.gateway}"') > 1.7e9
    assert sample(f'lakesync_oldest_unflushed_timestamp_seconds{{gateway="{client.gateway}"') > 1.7e9
    client.call("GET", "/admin/schema/{gw}")
    assert sample('lakesync_errors_total{code="FORBIDDEN"}') >= 1
    assert sample('lakesync_requests_total{method="POST",route="/sync/{gateway}/push",status="200"}') >= 1


def test_a_failure_tells_nothing_of_its_inside(served, monkeypatch):
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
