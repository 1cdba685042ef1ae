"""Values with injected syntax, and bytes that imitate requests."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
import requests

from gateway import compat_uvicorn, write_coalescing
from gateway.write_coalescing import WriteCoalescingTransport
from tests.integration.gateway_support import DEADLINE, delta, raw, until

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
def test_table_and_column_names_must_be_identifiers(served, text):
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
def test_hostile_ids_are_returned_unchanged(served, text):
    """The ids of rows and clients may be any text; they are returned unchanged and affect nothing else."""
    client = served.client(text)
    keep = served.client("keeper", client.gateway)
    assert keep.push(delta("kept", {"n": 1}, client="keeper")).status_code == 200
    assert client.push(delta(text, {"n": text}, client=text)).status_code == 200
    kept, odd = served.client("reader", client.gateway).pull().json()["deltas"]
    assert kept["rowId"] == "kept"
    assert (odd["rowId"], odd["clientId"], odd["columns"][0]["value"]) == (text, text, text)


@pytest.mark.parametrize(
    "value", ["a\rX-Evil: 1", "a%0d%0aX-Evil: 1", "a\x0bb", "é", "a;b", "<script>", "a" * 129, "a b"]
)
def test_an_unsafe_request_id_is_replaced(served, value):
    status, headers, _ = raw(
        served.url, "GET /health HTTP/1.1", "Host: x", "Connection: close", f"X-Request-Id: {value}"
    )
    assert status in (200, 400)
    assert "x-evil" not in headers
    assert len(headers["x-request-id"]) == 32


def test_values_cannot_add_lines_to_the_log(spawn):
    process = spawn()
    forged = '{"event": "request", "client": "forged"}'
    evil = f"x\n{forged}\r\n{forged}\u2028{forged}\x1b[2J"
    client = process.client(evil)
    assert client.push(delta(evil, {"n": evil}, client=evil)).status_code == 200
    assert client.push(delta("t1", {"n": 1}, client=evil, table="no\n" + forged)).status_code == 400
    assert client.call("GET", "/sync/{gw}/schema", params={"table": evil}).status_code in (400, 404)
    requests.get(process.url + "/" + quote(evil), headers={"User-Agent": "x"}, timeout=DEADLINE)
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


@pytest.mark.parametrize(
    "lines",
    [
        ["GET /health HTTP/1.1", "Host: x", "Bad Header: 1"],
        ["GET /health HTTP/1.1", "Host: x", "Content-Length: 5", "Transfer-Encoding: chunked"],
        ["GET /health HTTP/1.1", "Host: x", "Content-Length: 5", "Content-Length: 6"],
        ["GET /health HTTP/1.1", "Host: x", "Content-Length: -1"],
        ["GET /h\x80 HTTP/1.1", "Host: x"],
        ["GET /health HTTP/1.1"],
        ["GET /health HTTP/1.1", "Host: x", "Host: y"],
        ["GET http:// HTTP/1.1", "Host: x"],
        ["\x16\x03\x01\x02\x00\x01", ""],
        ["SSH-2.0-OpenSSH_9"],
    ],
)
def test_a_malformed_request_gets_an_error_in_the_common_form(served, lines):
    status, headers, body = raw(served.url, *lines)
    assert status == 400
    assert json.loads(body)["requestId"] == headers["x-request-id"]
    assert headers["cache-control"] == "no-store"
    assert headers["connection"] == "close"


def test_another_version_of_http_is_rejected(served):
    status, _, body = raw(served.url, "GET /health HTTP/2.0", "Host: x")
    assert (status, json.loads(body)["error"]) == (505, "HTTP/2.0 is not supported; send HTTP/1.1.")
    assert raw(served.url, "GET /health HTTP/1.0")[0] == 200


@pytest.mark.parametrize("codings", [["gzip, chunked"], ["gzip", "chunked"], ["identity, chunked"]])
def test_another_transfer_encoding_than_chunked_is_rejected(served, codings):
    headers = [f"Transfer-Encoding: {coding}" for coding in codings]
    assert raw(served.url, "GET /health HTTP/1.1", "Host: x", *headers)[0] == 501
    assert raw(served.url, "GET /health HTTP/1.1", "Host: x", "Transfer-Encoding: Chunked")[0] == 200


@pytest.mark.parametrize(
    ("filler", "count"), [("X-{n}: " + "x" * 1000, 80), ("X-{n}: " + "x" * 1000, 2000), ("X: {n}", 20_000)]
)
def test_a_head_above_the_limit_is_rejected(served, filler, count):
    status, _, body = raw(served.url, "GET /health HTTP/1.1", "Host: x", *(filler.format(n=n) for n in range(count)))
    assert status == 431
    assert json.loads(body)["code"] == "VALIDATION_ERROR"


def test_a_connection_without_a_head_is_closed(serve, monkeypatch):
    monkeypatch.setattr(compat_uvicorn, "HEAD_SECONDS", 0.5)
    with connected(serve().url) as connection:
        assert statuses(connection) == []


def test_a_head_that_takes_too_long_is_rejected(serve, monkeypatch):
    with used(serve().url) as connection:
        monkeypatch.setattr(compat_uvicorn, "HEAD_SECONDS", 0.5)
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        assert statuses(connection) == [408]


@pytest.mark.parametrize("seconds", ["LINGER_SECONDS", "BODY_SECONDS"])
def test_a_connection_without_its_body_is_closed(serve, monkeypatch, seconds):
    monkeypatch.setattr(compat_uvicorn, seconds, 0.2)
    server = serve()
    client = server.client()
    token = f"Authorization: Bearer {client.token}" if seconds == "BODY_SECONDS" else "X-Nobody: 1"
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST /sync/{client.gateway}/push HTTP/1.1\r\nHost: x\r\n{token}\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        connection.sendall(head.encode() + b"{")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer == b"" if seconds == "BODY_SECONDS" else answer.startswith(b"HTTP/1.1 401")


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        yield connection


def statuses(connection: socket.socket) -> list[int]:
    """The statuses of all responses until the server closes the connection."""
    answers = b"".join(iter(lambda: connection.recv(65536), b""))
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3})", answers)]


HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
LAST_HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@contextmanager
def used(url: str) -> Iterator[socket.socket]:
    """A connection that has had a response: no time limit for a head runs until its next request."""
    with connected(url) as connection:
        connection.sendall(HEALTH)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        yield connection


def posted(client, path: str, length: int) -> bytes:
    """The head of a request with a body."""
    head = f"POST {path.format(gw=client.gateway)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


def test_a_body_after_an_answered_request_has_its_own_time(serve, monkeypatch):
    """The end of the first response is not mistaken for the end of the second request, whose body is incomplete."""
    monkeypatch.setattr(compat_uvicorn, "LINGER_SECONDS", 0.0)
    server = serve()
    body = b'{"clientId":"client-1","deltas":[],"lastSeenHlc":"0"}'
    with connected(server.url) as connection:
        connection.sendall(HEALTH + posted(server.client(), "/sync/{gw}/push", len(body)) + body[:9])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert requests.get(f"{server.url}/health", timeout=DEADLINE).ok  # a time limit of 0 s would have ended
        connection.sendall(body[9:] + LAST_HEALTH)
        assert statuses(connection)[-2:] == [200, 200]


@pytest.mark.parametrize(
    ("seconds", "second", "expected"),
    [
        ("HEAD_SECONDS", b"GET /hea", [202, 408]),
        ("BODY_SECONDS", b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", [202, 405]),
        ("HEAD_SECONDS", b"this is not HTTP\r\n\r\n", [202, 400]),
    ],
    ids=["slow head", "slow body", "malformed"],
)
def test_a_request_is_answered_before_the_next_one_is_rejected(serve, monkeypatch, seconds, second, expected):
    server = serve()
    admin = server.client().admin()
    assert admin.push(delta("t1", {"n": 1}, client=admin.client_id)).status_code == 200  # so that the flush takes time
    with used(server.url) as connection:
        monkeypatch.setattr(compat_uvicorn, seconds, 1.0)
        connection.sendall(posted(admin, "/admin/flush/{gw}?wait=2", 0) + second)
        assert statuses(connection) == expected


def test_a_malformed_body_gets_no_second_response(served):
    """The request is answered with 401 before its body is read."""
    with connected(served.url) as connection:
        connection.sendall(b"POST /sync/gw/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        connection.sendall(b"no size of a chunk\r\n")
        assert statuses(connection) == []


def test_empty_lines_do_not_keep_a_connection_open(serve, monkeypatch):
    with used(serve().url) as connection:
        monkeypatch.setattr(compat_uvicorn, "HEAD_SECONDS", 0.5)
        connection.sendall(b"\r\n")
        assert statuses(connection) == []


def test_a_client_that_reads_nothing_is_disconnected(serve, monkeypatch):
    """It requests more than the sockets' buffers take."""
    aborted = threading.Event()
    abort = WriteCoalescingTransport.abort

    def recorded(transport):
        abort(transport)
        aborted.set()

    monkeypatch.setattr(WriteCoalescingTransport, "abort", recorded)
    monkeypatch.setattr(write_coalescing, "READER_SECONDS", 0.5)
    document = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with connected(serve().url) as connection:
        connection.sendall(document * 200)
        assert aborted.wait(DEADLINE)
        assert len(statuses(connection)) < 200


def test_the_limit_of_a_head_excludes_earlier_requests(served):
    """A server reads several pipelined requests at once."""
    large = HEALTH[:-2] + b"X: " + b"x" * 60_000 + b"\r\n\r\n"
    with connected(served.url) as connection:
        connection.sendall(large * 10 + LAST_HEALTH)
        assert statuses(connection) == [200] * 11


def test_error_messages_have_a_bounded_length(served):
    client = served.client()
    long = "x" * 500_000
    answer = client.push(delta("t1", {"n": 1}, table=long))
    assert answer.status_code == 400
    assert len(answer.content) < 4000
    assert "digits and _" in answer.json()["error"]  # the remedy is at its end
    rules = {"version": 1, "buckets": [{"name": "b", "tables": [long], "filters": []}]}
    assert len(client.admin().call("POST", "/admin/sync-rules/{gw}", json=rules).content) < 4000
