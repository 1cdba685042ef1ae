"""Authentication and roles over HTTP."""

from __future__ import annotations

import base64
import json
import time

import jwt
import pytest
import requests

from tests.integration.gateway_support import DEADLINE, PREVIOUS, SECRET, Client, delta, sign, until

CLIENT_ROUTES = [
    ("POST", "/sync/gw/push"),
    ("GET", "/sync/gw/pull"),
    ("POST", "/sync/gw/pull"),
    ("GET", "/sync/gw/checkpoint"),
    ("GET", "/sync/gw/schema"),
    ("GET", "/sync/gw/metrics"),
]
ADMIN_ROUTES = [
    ("GET", "/admin/schema/gw"),
    ("POST", "/admin/schema/gw"),
    ("GET", "/admin/sync-rules/gw"),
    ("POST", "/admin/sync-rules/gw"),
    ("POST", "/admin/flush/gw"),
    ("GET", "/admin/metrics/gw"),
]


def unsigned(payload: dict) -> str:
    def part(value: dict) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(payload)}."


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


GOOD = {"sub": "client-1", "gw": "gw", "exp": int(time.time()) + 86_400}
BAD_HEADERS = {
    "missing": {},
    "not bearer": {"Authorization": "Basic Zm9vOmJhcg=="},
    "empty": {"Authorization": "Bearer "},
    "garbage": bearer("a.b.c"),
    "expired": bearer(sign(seconds=-1)),
    "another secret": bearer(sign(secret="some other secret of thirty-two bytes")),
    "alg none": bearer(unsigned(GOOD)),
    "another algorithm": bearer(jwt.encode(GOOD, SECRET * 2, algorithm="HS512")),
    "no exp": bearer(jwt.encode({"sub": "client-1", "gw": "gw"}, SECRET)),
    "no sub": bearer(jwt.encode({"gw": "gw", "exp": GOOD["exp"]}, SECRET)),
    "no gw": bearer(jwt.encode({"sub": "client-1", "exp": GOOD["exp"]}, SECRET)),
    "empty sub": bearer(sign(sub="")),
    "gw not a string": bearer(jwt.encode({**GOOD, "gw": 7}, SECRET)),
    "exp not a number": bearer(jwt.encode({**GOOD, "exp": 1e400}, SECRET)),
    "unknown role": bearer(sign(role="root")),
}


@pytest.mark.parametrize("headers", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_an_invalid_token_is_rejected(served, headers):
    answer = requests.get(served.url + "/sync/gw/metrics", headers=headers, timeout=DEADLINE)
    assert answer.status_code == 401
    assert answer.json()["code"] == "AUTH_ERROR"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), CLIENT_ROUTES + ADMIN_ROUTES)
def test_every_route_needs_a_token_of_its_gateway(served, method, path):
    bare = requests.request(method, served.url + path, timeout=DEADLINE)
    assert bare.status_code == 401
    other = Client(served.url, "another-gateway", role="admin")
    assert other.call(method, path).status_code == 403


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
def test_admin_routes_need_the_role(served, method, path):
    answer = Client(served.url, "gw").call(method, path)
    assert answer.status_code == 403
    assert answer.json()["code"] == "FORBIDDEN"
    assert "admin" in answer.json()["error"]


def test_both_secrets_are_accepted_during_a_rotation(served):
    for secret in (SECRET, PREVIOUS):
        answer = requests.get(served.url + "/sync/gw/metrics", headers=bearer(sign(secret=secret)), timeout=DEADLINE)
        assert answer.status_code == 200


def test_an_expired_token_is_rejected(served):
    def status(token):
        return requests.get(served.url + "/sync/gw/metrics", headers=bearer(token), timeout=DEADLINE).status_code

    lifetimes = (3, 9, 27)  # a busy machine may need longer than the first lifetime
    accepted = next(token for seconds in lifetimes if status(token := sign(seconds=seconds)) == 200)
    until(lambda: status(accepted) == 401, "the token to expire")


def test_string_and_list_claims_feed_the_rules(served):
    writer = served.client("writer")
    rules = {
        "version": 1,
        "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "in", "value": "jwt:teams"}]}],
    }
    assert writer.admin().call("POST", "/admin/sync-rules/{gw}", json=rules).json()["saved"] is True
    writer.push(*(delta(team, {"team": team}, client="writer") for team in ("red", "blue", "green")))
    reader = served.client("reader", writer.gateway, teams=["red", "blue"], level=3)
    assert sorted(each["rowId"] for each in reader.pull().json()["deltas"]) == ["blue", "red"]
    assert served.client("stranger", writer.gateway).pull().json()["deltas"] == []


@pytest.mark.parametrize("gateway", ["a.b", "ä", "x" * 65, "%20"])
def test_an_invalid_gateway_id_is_rejected(served, gateway):
    answer = requests.get(f"{served.url}/sync/{gateway}/metrics", headers=bearer(sign()), timeout=DEADLINE)
    assert answer.status_code == 400


def test_an_undeclared_gateway_is_not_found_without_auto_create(serve):
    closed = serve(auto_create=False)
    assert closed.client().call("GET", "/sync/{gw}/metrics").status_code == 404


def test_without_a_secret_a_loopback_server_accepts_any_client(serve):
    open_server = serve(secrets=())
    body = {"clientId": "anyone", "deltas": [delta("t1", {"n": 1}, client="anyone")], "lastSeenHlc": "0"}
    assert requests.post(open_server.url + "/sync/gw/push", json=body, timeout=DEADLINE).json()["accepted"] == 1
    assert requests.get(open_server.url + "/admin/schema/gw", timeout=DEADLINE).status_code == 200


@pytest.mark.parametrize("client", ["", "x" * 513, "a\0b"])
def test_without_a_secret_a_client_id_must_be_valid(serve, client):
    url = serve(secrets=()).url + "/sync/gw/"
    invalid = [
        requests.post(url + "push", json={"clientId": client, "deltas": []}, timeout=DEADLINE),
        requests.post(url + "pull", json={"clientId": client}, timeout=DEADLINE),
        requests.get(url + "pull", {"clientId": client}, timeout=DEADLINE),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in invalid] == [(400, "VALIDATION_ERROR")] * 3
    body = {"clientId": "a", "deltas": [delta("t1", {"n": 1}, client="a")]}
    requests.post(url + "push", json=body, timeout=DEADLINE).raise_for_status()
    page = requests.get(url + "pull", {"clientId": "new"}, timeout=DEADLINE).json()
    assert [each["op"] for each in page["deltas"]] == ["INSERT"], "no client has another client's record"
