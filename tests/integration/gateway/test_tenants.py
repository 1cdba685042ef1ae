"""No request reaches the data of another tenant, by path, token, header or claim, or reveals that it exists."""

from __future__ import annotations

import json
import socket

import pytest
import requests

from tests.integration.gateway.operations import OPERATIONS
from tests.integration.gateway_support import DEADLINE, SERVICE, Client, delta, filled, raw, sign, wall_ms

GUARDED = [each for each in OPERATIONS if each.access in ("client", "admin")]


@pytest.mark.parametrize("operation", GUARDED, ids=lambda each: f"{each.method} {each.path}")
def test_another_tenants_gateway_answers_like_a_missing_one(served, operation):
    victim = served.client("victim")
    victim.push(delta("secret-row", {"n": 1}, client="victim"))
    attacker = Client(served.url, "attackers-own", "victim", "admin")
    answers = []
    for gateway in (victim.gateway, "never-made"):
        path = filled(operation.path, gateway=gateway)
        answer = attacker.call(operation.method, path, json={})
        assert answer.status_code == 403
        answers.append({**answer.json(), "requestId": ""})
        assert "secret-row" not in answer.text
    assert answers[0] == json.loads(json.dumps(answers[1]).replace("never-made", victim.gateway))
    assert "never-made" not in served.engine.gateways()


PATHS = [
    "/sync/{own}/../{other}/pull",
    "/sync/{own}/..%2F{other}/pull",
    "/sync/{own}%2F..%2F{other}/pull",
    "/sync/{own}%2f..%2f{other}/metrics",
    "/sync/{other}%00/pull",
    "/sync/%2e%2e/sync/{other}/pull",
    "/sync/./{other}/pull",
    "//sync/{other}/pull",
    "/sync//{other}/pull",
    "/sync/{other}//pull",
    "/sync/{other}/pull/",
    "/sync/{other};x={own}/pull",
    "/sync/{other}%20/pull",
    "/sync/{other}%0a/pull",
    "/sync/{other}%0d%0aX: y/pull",
    "/v1/v1/sync/{other}/pull",
    "/v1//sync/{other}/pull",
    "/v2/sync/{other}/pull",
    "/V1/sync/{other}/pull",
    "/SYNC/{other}/pull",
    "/sync/{other}\\pull",
    "/sync/{other}/pull%3F",
    "/sync/\uff0e\uff0e/{other}/pull",
    "/sync/{other}\u200b/pull",
    "/sync/{wide}/pull",
    "/sync/*/pull",
    "/sync/%25/pull",
    "/sync/" + "a" * 65 + "/pull",
    "/admin/metrics/{own}/../{other}",
    "/admin/metrics/{own}%2F{other}",
    "/internal/staging/../../sync/{other}/pull",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_manipulated_path_reaches_no_other_gateway(served, path):
    victim = served.client("victim")
    victim.push(delta("secret-row", {"n": 1}, client="victim"))
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in victim.gateway)  # similar but not equal
    place = path.format(own="own", other=victim.gateway, wide=wide).encode().decode("latin-1").replace(" ", "%20")
    for token in (sign("victim", "own", role="admin"), sign("victim", wide, role="admin"), sign("victim", place)):
        status, headers, body = raw(
            served.url,
            f"GET {place} HTTP/1.1",
            "Host: evil.example",
            "Connection: close",
            f"Authorization: Bearer {token}",
        )
        assert status in (400, 401, 403, 404), (status, body)
        assert "location" not in headers
        assert b"secret-row" not in body
        assert json.loads(body)["code"] in ("VALIDATION_ERROR", "AUTH_ERROR", "FORBIDDEN", "NOT_FOUND")


@pytest.mark.parametrize(
    "header",
    ["X-HTTP-Method-Override", "X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Host", "X-Gateway-Id", "X-Client-Id"],
)
def test_override_headers_have_no_effect(served, header):
    client = served.client()
    value = {"X-HTTP-Method-Override": "DELETE"}.get(header, "/admin/schema/x")
    plain = client.call("GET", "/sync/{gw}/metrics").json()
    assert client.call("GET", "/sync/{gw}/metrics", headers={header: value}).json() == plain


TEAMS = ["a", "b", 'a","b', '["a"]', "*", "%"]


@pytest.mark.parametrize(
    "team",
    [
        ["_", "?", ".*", "[a-z]", "A", "a ", " a", "", "null", "{}", "a\n", "\u0430", "a\u200b"],
        [["a%"]],
        ["@victim", "jwt:team", "jwt:", 'x"]', '","', "]", '[["a"]]', "a" * 4000],
    ],
    ids=["wildcards", "list", "keys"],
)
def test_claims_are_compared_as_text(served, team):
    victim = served.client("victim")
    rules = {
        "version": 1,
        "buckets": [
            {"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]},
            {"name": 'x","y', "tables": [], "filters": [{"column": "team", "op": "in", "value": "jwt:teams"}]},
        ],
    }
    victim.admin().call("POST", "/admin/sync-rules/{gw}", json=rules)
    victim.push(*(delta(name, {"team": name}, client="victim") for name in TEAMS))
    for place, claim in enumerate(team):
        for claims in ({"team": claim}, {"teams": claim}, {"teams": [claim] if isinstance(claim, str) else claim}):
            reader = served.client(f"reader-{place}-{next(iter(claims))}", victim.gateway, **claims)
            assert reader.pull().json()["deltas"] == []
    for name in TEAMS:
        member = served.client(f"member-{name}", victim.gateway, team=name)
        assert [each["rowId"] for each in member.pull().json()["deltas"]] == [name]


def test_claims_of_other_types_show_no_rows(served):
    victim = served.client("victim")
    filters = [{"column": "level", "op": "gte", "value": "jwt:level"}]
    rules = {"version": 1, "buckets": [{"name": "b", "tables": [], "filters": filters}]}
    victim.admin().call("POST", "/admin/sync-rules/{gw}", json=rules)
    victim.push(delta("t1", {"level": 5}, client="victim"))
    for place, level in enumerate([0, True, None, {}, [], [1], {"$gt": ""}, [["0"]]]):
        assert served.client(f"reader-{place}", victim.gateway, level=level).pull().json()["deltas"] == []
    assert len(served.client("member", victim.gateway, level="4").pull().json()["deltas"]) == 1


def test_the_service_token_and_other_tokens_open_only_their_own_routes(served):
    service = {"Authorization": f"Bearer {SERVICE}"}
    for operation in GUARDED:
        path = filled(operation.path, gateway="gw")
        answer = requests.request(operation.method, served.url + path, headers=service, timeout=DEADLINE)
        assert answer.status_code == 401
    staging = served.url + "/internal/staging/gateways"
    for token in (sign(role="admin"), SERVICE + "x", SERVICE[:-1], SERVICE.upper(), "ü"):
        headers = {"Authorization": f"Bearer {token}".encode()}
        assert requests.post(staging, json={}, headers=headers, timeout=DEADLINE).status_code == 401


@pytest.mark.parametrize(
    "forwarded", ["203.0.113.7", "203.0.113.7, 10.0.0.1", "evil", "127.0.0.1, 203.0.113.7", "::2", "[::1"]
)
def test_requests_through_a_proxy_cannot_reach_internal_routes(served, forwarded):
    headers = {"Authorization": f"Bearer {SERVICE}", "X-Forwarded-For": forwarded}
    answer = requests.post(served.url + "/internal/staging/gateways", json={}, headers=headers, timeout=DEADLINE)
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")


def test_the_pipelines_route_is_closed_to_other_machines(serve):
    """A caller through the machine's external address, if it has one, does not come from a loopback address."""
    wide = serve(host="0.0.0.0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this machine has only a loopback address")
        outer = probe.getsockname()[0]
    if outer.startswith("127."):
        pytest.skip("this machine has only a loopback address")
    url = f"http://{outer}:{wide.url.rpartition(':')[2]}"
    headers = {"Authorization": f"Bearer {SERVICE}", "X-Forwarded-For": "127.0.0.1"}
    answer = requests.post(url + "/internal/staging/gateways", json={}, headers=headers, timeout=DEADLINE)
    assert answer.status_code == 403
    assert requests.get(url + "/health", timeout=DEADLINE).status_code == 200


TEAM = {
    "version": 1,
    "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
SHARED_BACKEND = """
[flush]
to_uri = "file://{folder}/objects"
max_age_seconds = 3600.0
[sources]
own = "file://{folder}/objects"
reference = {{ uri = "file://{folder}/objects", gateway = "acme" }}
"""


@pytest.mark.parametrize("rules", [TEAM, None], ids=["rules", "all rows"])
def test_a_declared_source_has_the_rows_of_one_gateway(spawn, tmp_path, rules):
    (tmp_path / "declared.toml").write_text(SHARED_BACKEND.format(folder=tmp_path))
    server = spawn(LAKESYNC_CONFIG=str(tmp_path / "declared.toml"))
    pushed = {  # n1 is a row of both gateways, and acme's last deltas are newer than all of bolt's
        "bolt": [("n1", {"team": "red", "text": "of bolt"}), ("n3", {"team": "red", "text": "of bolt"})],
        "acme": [("n1", {"team": "red", "secret": "of acme"}), ("n2", {"team": "red", "secret": "of acme"})],
    }
    for place, (gateway, rows) in enumerate(pushed.items()):
        alice = server.client("alice", gateway)
        if rules is not None:
            assert alice.admin().call("POST", "/admin/sync-rules/{gw}", json=rules).status_code == 200
        stamp = (wall_ms() << 16) + 10 * place
        made = [delta(row, after, client="alice", hlc=stamp + n) for n, (row, after) in enumerate(rows)]
        assert alice.push(*made).status_code == 200
        assert alice.admin().call("POST", "/admin/flush/{gw}?wait=30").json()["flushed"] is True

    def read(gateway, source):
        bob = server.client(f"bob of {source}", gateway, team="red")
        since, rows, more = bob.pull().json()["serverHlc"], {}, True
        while more:
            page = bob.pull(since, source=source, limit=1).json()
            for each in page["deltas"]:
                if each["op"] != "DELETE":
                    cells = {cell["column"]: cell["value"] for cell in each["columns"]}
                    rows[each["rowId"]] = rows.get(each["rowId"], {}) | cells
            since, more = page["serverHlc"], page["hasMore"]
        return rows

    for gateway, rows in pushed.items():
        assert read(gateway, "own") == dict(rows)
        assert read(gateway, "reference") == dict(pushed["acme"])
