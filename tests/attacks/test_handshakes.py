"""Unauthenticated connections: rejected handshakes, close codes chosen by clients, and long request heads."""

from __future__ import annotations

import json
import re
import socket

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.integration.gateway_support import DEADLINE, sign, until


@pytest.fixture(scope="module")
def server(spawn_for_module):
    return spawn_for_module(LAKESYNC_LIMITS_REQUESTS_PER_SECOND="100000")


def answer_to(server, head, body=b""):
    """Return the status of a raw request; None if the connection ends without a response."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        connection.sendall(head + body)
        found = b""
        while b"\r\n" not in found and (part := connection.recv(65536)):
            found += part
    return int(found.split()[1]) if found else None


@pytest.mark.parametrize("path", ["/sync/gw/ws", "/sync/gw/ws?token=wrong", "/nowhere"])
def test_a_rejected_handshake_is_not_logged_as_an_error(server, path):
    with pytest.raises(InvalidStatus) as refused:
        connect(server.url.replace("http", "ws") + path)
    assert refused.value.response.status_code in (401, 404)
    assert json.loads(refused.value.response.body)["code"]
    requests.get(f"{server.url}/health", timeout=DEADLINE).raise_for_status()
    assert [line for line in server.lines() if line.get("level") == "error"] == []
    assert "ASGI" not in server.log.read_text()


def test_close_codes_chosen_by_clients_do_not_become_metric_labels(server):
    url = f"{server.url.replace('http', 'ws')}/sync/gw/ws"
    headers = {"Authorization": f"Bearer {sign('alice')}"}
    for code in (1000, 1001, *range(3000, 3050), 4999):
        with connect(url, additional_headers=headers) as live:
            live.close(code)

    def counted():
        text = requests.get(f"{server.url}/metrics", timeout=DEADLINE).text
        found = dict(re.findall(r'lakesync_websocket_closes_total\{code="(\w+)"\} ([0-9.]+)', text))
        return found if sum(map(float, found.values())) == 53 else None

    assert until(counted, "53 ends") == {"1000": "1.0", "1001": "1.0", "other": "51.0"}


@pytest.mark.parametrize("body", [b"", b"x" * 200_000], ids=["alone", "with a body"])
@pytest.mark.parametrize(
    "padding",
    [
        b"a:b\r\n" * 24_000,
        b"".join(b"h%d: v\r\n" % number for number in range(12_000)),
        b"a:" + b" " * 120_000 + b"b\r\n",
        b"a: b" + b" " * 120_000 + b"\r\n",
        b"a: " + b"x" * 120_000 + b"\r\n",
    ],
    ids=["shortest", "short", "spaces before", "spaces behind", "long"],
)
def test_a_long_head_of_any_form_is_rejected(server, padding, body):
    head = b"POST /sync/gw/push HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
    assert answer_to(server, head + padding + b"\r\n", body) == 431


@pytest.mark.parametrize(
    "long",
    [
        b"GET /sync/gw/ws?token=" + b"x" * 9_000 + b" HTTP/1.1\r\n",
        b"GET /sync/gw/ws HTTP/1.1\r\nAuthorization: Bearer " + b"x" * 9_000 + b"\r\n",
        b"GET /sync/gw/ws HTTP/1.1\r\n" + b"a: b\r\n" * 200,
    ],
    ids=["path", "header", "many headers"],
)
def test_a_handshake_above_the_limit_is_answered_and_closed(server, long):
    head = long + b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    head += b"Sec-WebSocket-Key: bGFrZXN5bmMgaXMgc2FmZQ==\r\n\r\n"
    assert answer_to(server, head) == 431


@pytest.mark.parametrize("size", [60_000, 65_000])
def test_a_head_within_the_limit_is_served(server, size):
    body = b"{}"
    head = b"POST /sync/gw/push HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\na: " % len(body)
    head += b"x" * (size - len(head)) + b"\r\n\r\n"
    assert answer_to(server, head, body) == 401


def test_a_long_head_after_a_complete_request_is_rejected(server):
    first = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        connection.sendall(first + b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 24_000 + b"\r\n")
        found = b""
        while part := connection.recv(65536):
            found += part
    assert b"HTTP/1.1 431" in found
