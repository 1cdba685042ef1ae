"""SIGTERM during requests: running requests are answered, new ones are rejected, and nothing is lost."""

from __future__ import annotations

import json
import signal
import socket
import threading
from urllib.parse import urlsplit

import requests

from tests.integration.gateway_support import DEADLINE, delta, until


def test_pushes_during_shutdown_are_finished_or_rejected(spawn):
    server = spawn()
    server.client("warm").pull()
    acknowledged: list[str] = []
    turned_away: list[requests.Response] = []
    begun = threading.Event()

    def write(name: str) -> None:
        client = server.client(name)
        for n in range(10_000):
            row = f"{name}-{n}"
            try:
                answer = client.push(delta(row, {"n": n}, client=name))
            except requests.ConnectionError:  # it has stopped listening
                return
            if answer.status_code == 503:
                turned_away.append(answer)
                return
            assert answer.status_code == 200
            acknowledged.append(row)
            if len(acknowledged) > 40:
                begun.set()

    writers = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
    for writer in writers:
        writer.start()
    assert begun.wait(DEADLINE)
    server.process.send_signal(signal.SIGTERM)
    for writer in writers:
        writer.join(DEADLINE)
    assert server.process.wait(DEADLINE) == 0
    assert all(int(answer.headers["retry-after"]) > 0 for answer in turned_away)
    assert all(answer.json()["error"].startswith("draining") for answer in turned_away)
    again = spawn().client("reader").pull(limit=10_000).json()
    assert {each["rowId"] for each in again["deltas"]} >= set(acknowledged)


def test_an_unfinished_request_delays_shutdown_by_its_timeout_at_most(spawn):
    server = spawn(LAKESYNC_LIMITS_REQUEST_TIMEOUT_SECONDS="1")
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), DEADLINE) as connection:
        connection.sendall(
            f"POST /sync/gw/push HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.client().token}\r\n"
            "Content-Length: 1000\r\n\r\n".encode()
        )
        requests.get(server.url + "/health", timeout=DEADLINE)  # so that the server has read the head before
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE) == 0
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "STAGING_UNAVAILABLE"
    drained = until(lambda: [line for line in server.lines() if line["event"] == "drained"], "the log")
    assert drained[0]["in_flight"] == 0


def test_idle_connections_do_not_delay_shutdown(spawn):
    server = spawn()
    place = urlsplit(server.url)
    with (
        socket.create_connection((place.hostname, place.port), DEADLINE) as silent,
        socket.create_connection((place.hostname, place.port), DEADLINE) as kept,
    ):
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE) == 0
        assert silent.recv(10) == b""
        assert b"".join(iter(lambda: kept.recv(100), b"")) in (b"", b'{"status":"ok"}')


def test_a_second_signal_changes_nothing(spawn):
    server = spawn()
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE) == 0
