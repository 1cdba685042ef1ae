"""Other tenants' data, crooked paths, and values that want to be more than values."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
import requests

from gateway import protocol
from gateway.routes import OPERATIONS
from tests.integration.gateway_support import DEADLINE, SERVICE, Client, delta, sign, until

GUARDED = [each for each in OPERATIONS if each.access in ("client", "admin")]


def raw(url: str, *lines: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Send a request as it stands, latin-1; status, headers and body."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, rest = answer.partition(b"\r\n\r\n")
    status, *headers = head.decode("latin-1").split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in headers), rest


@pytest.mark.parametrize("operation", GUARDED, ids=lambda each: f"{each.method} {each.path}")
def test_another_tenants_gateway_answers_as_one_that_is_not_there(served, operation):
    victim = served.client("victim")
    victim.push(delta("secret-row", {"n": 1}, client="victim"))
    attacker = Client(served.url, "attackers-own", "victim", "admin")
    answers = []
    for gateway in (victim.gateway, "never-made"):
        path = operation.path.replace("{name}", "x").format(gateway=gateway)
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
def test_a_crooked_path_leads_nowhere(served, path):
    victim = served.client("victim")
    victim.push(delta("secret-row", {"n": 1}, client="victim"))
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in victim.gateway)  # looks like it, and is not
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
def test_no_header_changes_what_is_asked(served, header):
    client = served.client()
    value = {"X-HTTP-Method-Override": "DELETE"}.get(header, "/admin/schema/x")
    plain = client.call("GET", "/sync/{gw}/metrics").json()
    assert client.call("GET", "/sync/{gw}/metrics", headers={header: value}).json() == plain


INJECTIONS = [
    "todos; DROP TABLE log",
    "todos' OR '1'='1",
    'todos" --',
    "todos`",
    "todos\0",
    "todos\n",
    "../todos",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "todos%20",
    "_tödos",
    "lake.tables.todos",
    "1todos",
    "",
    "x" * 65,
]


@pytest.mark.parametrize("text", INJECTIONS)
def test_only_an_identifier_names_a_table_or_a_column(served, text):
    client = served.client()
    for wrong in (delta("t1", {"n": 1}, table=text), delta("t1", {text: 1})):
        answer = client.push(wrong)
        assert answer.status_code == 400
        assert [each["deltaId"] for each in answer.json()["rejected"]] == [wrong["deltaId"]]
    admin = client.admin()
    column = {"name": text, "type": "string"}
    for schema in ({"table": text, "columns": [{"name": "a", "type": "string"}]}, {"table": "a", "columns": [column]}):
        assert admin.call("POST", "/admin/schema/{gw}", json=schema).status_code == 400
    bucket: dict[str, Any] = {"name": "b", "tables": [text], "filters": []}
    by_column = {"name": "b", "tables": [], "filters": [{"column": text, "op": "eq", "value": "x"}]}
    for rules in ({"version": 1, "buckets": [bucket]}, {"version": 1, "buckets": [by_column]}):
        assert admin.call("POST", "/admin/sync-rules/{gw}", json=rules).status_code == 400
    assert client.call("GET", "/sync/{gw}/schema", params={"table": text}).status_code in (400, 404)
    assert client.pull().json()["deltas"] == []


@pytest.mark.parametrize("text", [text for text in INJECTIONS if text and "\0" not in text])
def test_an_id_is_only_a_text(served, text):
    """A row's and a client's id may be anything; they come back as they were and touch nothing else."""
    client = served.client(text)
    keep = served.client("keeper", client.gateway)
    assert keep.push(delta("kept", {"n": 1}, client="keeper")).status_code == 200
    assert client.push(delta(text, {"n": text}, client=text)).status_code == 200
    kept, odd = served.client("reader", client.gateway).pull().json()["deltas"]
    assert kept["rowId"] == "kept"
    assert (odd["rowId"], odd["clientId"], odd["columns"][0]["value"]) == (text, text, text)


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
def test_a_claim_is_compared_as_a_text(served, team):
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


def test_claims_of_other_types_open_nothing(served):
    victim = served.client("victim")
    filters = [{"column": "level", "op": "gte", "value": "jwt:level"}]
    rules = {"version": 1, "buckets": [{"name": "b", "tables": [], "filters": filters}]}
    victim.admin().call("POST", "/admin/sync-rules/{gw}", json=rules)
    victim.push(delta("t1", {"level": 5}, client="victim"))
    for place, level in enumerate([0, True, None, {}, [], [1], {"$gt": ""}, [["0"]]]):
        assert served.client(f"reader-{place}", victim.gateway, level=level).pull().json()["deltas"] == []
    assert len(served.client("member", victim.gateway, level="4").pull().json()["deltas"]) == 1


@pytest.mark.parametrize(
    "value", ["a\rX-Evil: 1", "a%0d%0aX-Evil: 1", "a\x0bb", "é", "a;b", "<script>", "a" * 129, "a b"]
)
def test_a_request_id_is_not_given_back_as_it_came(served, value):
    status, headers, _ = raw(
        served.url, "GET /health HTTP/1.1", "Host: x", "Connection: close", f"X-Request-Id: {value}"
    )
    assert status in (200, 400)
    assert "x-evil" not in headers
    assert len(headers["x-request-id"]) == 32


def test_values_make_no_lines_in_the_log(spawn):
    process = spawn()
    forged = '{"event": "request", "client": "forged"}'
    evil = f"x\n{forged}\r\n{forged}\u2028{forged}\x1b[2J"
    client = process.client(evil)
    assert client.push(delta(evil, {"n": evil}, client=evil)).status_code == 200
    assert client.push(delta("t1", {"n": 1}, client=evil, table="no\n" + forged)).status_code == 400
    assert client.call("GET", "/sync/{gw}/schema", params={"table": evil}).status_code in (400, 404)
    requests.get(process.url + "/" + requests.utils.quote(evil), headers={"User-Agent": "x"}, timeout=DEADLINE)
    requests.get(process.url + "/health", params={"token": client.token}, timeout=DEADLINE)
    lines = until(
        lambda: len(found := [line for line in process.lines() if line["event"] == "request"]) >= 5 and found, "the log"
    )
    assert len(lines) == 5
    assert [line.get("client") for line in lines] == [evil, evil, evil, None, None]
    text = process.log.read_text()
    assert "\x1b" not in text
    assert text.count("\n") == len(process.lines())
    assert client.token not in text
    assert client.token.rpartition(".")[2] not in text


def test_the_service_token_opens_nothing_else_and_nobody_elses_token_the_pipeline(served):
    service = {"Authorization": f"Bearer {SERVICE}"}
    for operation in GUARDED:
        path = operation.path.format(gateway="gw", name="x")
        answer = requests.request(operation.method, served.url + path, headers=service, timeout=DEADLINE)
        assert answer.status_code == 401
    staging = served.url + "/internal/staging/gateways"
    for token in (sign(role="admin"), SERVICE + "x", SERVICE[:-1], SERVICE.upper(), "ü"):
        headers = {"Authorization": f"Bearer {token}".encode()}
        assert requests.post(staging, json={}, headers=headers, timeout=DEADLINE).status_code == 401


@pytest.mark.parametrize(
    "forwarded", ["203.0.113.7", "203.0.113.7, 10.0.0.1", "evil", "127.0.0.1, 203.0.113.7", "::2", "[::1"]
)
def test_the_pipelines_route_is_closed_to_whoever_comes_through_a_proxy(served, forwarded):
    headers = {"Authorization": f"Bearer {SERVICE}", "X-Forwarded-For": forwarded}
    answer = requests.post(served.url + "/internal/staging/gateways", json={}, headers=headers, timeout=DEADLINE)
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")


def test_the_pipelines_route_is_closed_to_other_machines(serve):
    """Through the machine's own outer address, where it has one, the caller is no loopback address."""
    wide = serve(host="0.0.0.0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        outer = probe.getsockname()[0]
    if outer.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    url = f"http://{outer}:{wide.url.rpartition(':')[2]}"
    headers = {"Authorization": f"Bearer {SERVICE}", "X-Forwarded-For": "127.0.0.1"}
    answer = requests.post(url + "/internal/staging/gateways", json={}, headers=headers, timeout=DEADLINE)
    assert answer.status_code == 403
    assert requests.get(url + "/health", timeout=DEADLINE).status_code == 200


@pytest.mark.parametrize(
    "lines",
    [
        ["GET /health HTTP/1.1", "Host: x", "Bad Header: 1"],
        ["GET /health HTTP/1.1", "Host: x", "Content-Length: 5", "Transfer-Encoding: chunked"],
        ["GET /health HTTP/1.1", "Host: x", "Content-Length: 5", "Content-Length: 6"],
        ["GET /health HTTP/1.1", "Host: x", "Content-Length: -1"],
        ["GET /h\x80 HTTP/1.1", "Host: x"],
        ["GET http:// HTTP/1.1", "Host: x"],
        ["\x16\x03\x01\x02\x00\x01", ""],
        ["SSH-2.0-OpenSSH_9"],
    ],
)
def test_what_is_no_http_gets_the_form_of_every_error(served, lines):
    status, headers, body = raw(served.url, *lines)
    assert status == 400
    assert json.loads(body)["requestId"] == headers["x-request-id"]
    assert headers["cache-control"] == "no-store"
    assert headers["connection"] == "close"


@pytest.mark.parametrize(
    ("filler", "count"), [("X-{n}: " + "x" * 1000, 80), ("X-{n}: " + "x" * 1000, 2000), ("X: {n}", 20_000)]
)
def test_a_head_has_a_bound(served, filler, count):
    status, _, body = raw(served.url, "GET /health HTTP/1.1", "Host: x", *(filler.format(n=n) for n in range(count)))
    assert status == 431
    assert json.loads(body)["code"] == "VALIDATION_ERROR"


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nX: "])
def test_a_head_that_takes_too_long_is_closed(serve, monkeypatch, sent):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    host, port = serve().url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        connection.sendall(sent)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408") if sent else answer == b""


def test_an_error_is_short_whatever_was_sent(served):
    client = served.client()
    long = "x" * 500_000
    answer = client.push(delta("t1", {"n": 1}, table=long))
    assert answer.status_code == 400
    assert len(answer.content) < 4000
    assert "digits and _" in answer.json()["error"]  # what to do stands at its end
    rules = {"version": 1, "buckets": [{"name": "b", "tables": [long], "filters": []}]}
    assert len(client.admin().call("POST", "/admin/sync-rules/{gw}", json=rules).content) < 4000
