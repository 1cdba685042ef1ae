"""Request smuggling: requests whose end a proxy and the gateway could find at different places."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress

import pytest
import requests

from tests.integration.gateway_support import DEADLINE

HIDDEN = b"GET /connectors/types HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CHUNKED = b"0\r\n\r\n"
AMBIGUOUS = {
    "a length and chunks": [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
    "chunks and a length": [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
    "two lengths": [b"Content-Length: 5", b"Content-Length: 6"],
    "a list of lengths": [b"Content-Length: 5, 6"],
    "a signed length": [b"Content-Length: +5"],
    "a negative length": [b"Content-Length: -5"],
    "a length in hexadecimal": [b"Content-Length: 0x5"],
    "a length in other digits": ["Content-Length: \xb2".encode("latin-1")],
    "a length beyond 64 bits": [b"Content-Length: 18446744073709551621"],
    "chunks twice": [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
    "chunks within chunks": [b"Transfer-Encoding: chunked, chunked"],
    "chunks that are not last": [b"Transfer-Encoding: chunked, identity"],
    "an unknown coding": [b"Transfer-Encoding: xchunked"],
    "a vertical tab": [b"Transfer-Encoding: \x0bchunked"],
    "a space before the colon": [b"Transfer-Encoding : chunked"],
    "a folded line": [b"Transfer-Encoding:", b" chunked"],
    "a folded length": [b"X: y", b" Content-Length: 5"],
    "a bare line feed": [b"X: y\nContent-Length: 5"],
    "a bare carriage return": [b"X: y\rContent-Length: 5"],
    "a NUL in a name": [b"Content\x00-Length: 5"],
    "an upgrade with a length": [b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 5"],
    "an upgrade with chunks": [b"Connection: Upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked"],
    "a WebSocket with a length": [b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 5"],
}


def answers(served, *lines, body=b""):
    """Send bytes over one connection; return the number of responses and the status of the first one."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), DEADLINE) as line:
        line.sendall(b"\r\n".join([b"POST /sync/gw/pull HTTP/1.1", b"Host: x", *lines, b"", b""]) + body + HIDDEN)
        said = b"".join(iter(lambda: line.recv(65536), b""))
    return said.count(b"HTTP/1.1 "), int(said.split(b" ", 2)[1]) if said else 0


@pytest.fixture(autouse=True)
def no_errors(served, caplog):
    """Malformed HTTP must not fill the server's log with errors."""
    yield
    assert requests.get(f"{served.url}/health", timeout=DEADLINE).ok  # wait until earlier requests have ended
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_requests_are_rejected_and_end_the_connection(served, name):
    count, status = answers(served, *AMBIGUOUS[name], body=CHUNKED)
    assert (count, status) == (1, 501 if name == "an unknown coding" else 400), name


@pytest.mark.parametrize("name", [name for name in AMBIGUOUS if "upgrade" in name or "WebSocket" in name])
def test_bytes_after_the_answer_to_an_ambiguous_request_are_not_served(served, name):
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), DEADLINE) as line:
        line.sendall(b"\r\n".join([b"POST /sync/gw/pull HTTP/1.1", b"Host: x", *AMBIGUOUS[name], b"", b""]))
        said = line.recv(65536)
        with suppress(ConnectionError):
            line.sendall(HIDDEN)
            said += b"".join(iter(lambda: line.recv(65536), b""))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1


def test_an_upgrade_that_the_server_does_not_know_is_ignored(served):
    """Java's HTTP client offers an upgrade to HTTP/2 in this way."""
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABk"}
    answer = requests.get(f"{served.url}/health", headers=headers, timeout=DEADLINE)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("size", [b"0x5", b"+5", b"5 ", b"ffffffffffffffff5", b"5\n", b"", b"-1", b"5;\n"])
def test_a_chunk_with_an_ambiguous_size_is_rejected(served, size):
    body = size + b"\r\n12345\r\n0\r\n\r\n"
    count, status = answers(served, b"Transfer-Encoding: chunked", body=body)
    assert (count, status) == (1, 400)


def test_two_unambiguous_requests_get_two_answers(served):
    assert answers(served, b"Content-Length: 5", body=b"12345") == (2, 401)
