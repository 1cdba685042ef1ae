"""The server as a process: its start, shutdown and recovery."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
import requests

from tests.integration.gateway_support import DEADLINE, delta, until, wall_ms


def test_acknowledged_pushes_survive_a_kill(spawn):
    first = spawn()
    alice = first.client("alice")
    rows = [f"t{n}" for n in range(20)]
    for row in rows:
        assert alice.push(delta(row, {"title": row}, client="alice")).status_code == 200
    cursor = first.client("bob").pull(limit=5).json()
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(DEADLINE)
    second = spawn()
    rest = second.client("bob").pull(cursor["serverHlc"], limit=1000).json()
    assert [each["rowId"] for each in cursor["deltas"] + rest["deltas"]] == rows
    assert second.client("carol").pull(limit=1000).json()["deltas"] == cursor["deltas"] + rest["deltas"]


def test_a_push_in_progress_is_finished_while_new_ones_are_rejected(spawn):
    server = spawn()
    alice = server.client("alice")
    body = json.dumps(
        {"clientId": "alice", "deltas": [delta("t1", {"n": 1}, client="alice")], "lastSeenHlc": "0"}
    ).encode()
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), DEADLINE) as connection:
        connection.sendall(
            f"POST /sync/gw/push HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice.token}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body[:20]
        )
        # the server has read the head of a request in flight once a later request has been answered
        requests.get(server.url + "/health", timeout=DEADLINE)
        server.process.send_signal(signal.SIGTERM)
        draining = until(
            lambda: next((line for line in server.lines() if line["event"] == "draining"), None), "the drain"
        )
        assert draining["in_flight"] == 1
        turned_away = alice.push(delta("t2", {"n": 2}, client="alice"))
        assert turned_away.status_code == 503
        assert turned_away.json()["code"] == "STAGING_UNAVAILABLE"
        assert int(turned_away.headers["retry-after"]) > 0
        assert requests.get(server.url + "/ready", timeout=DEADLINE).json()["error"].startswith("draining")
        assert requests.get(server.url + "/health", timeout=DEADLINE).status_code == 200
        connection.sendall(body[20:])
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["accepted"] == 1
    assert server.process.wait(DEADLINE) == 0
    assert [each["rowId"] for each in spawn().client("bob").pull().json()["deltas"]] == ["t1"]


def test_an_idle_server_stops_on_sigint(spawn):
    server = spawn()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(DEADLINE) == 0


def test_without_a_secret_the_gateway_serves_loopback_only_and_warns(spawn):
    server = spawn(LAKESYNC_JWT_SECRET="")
    assert any("no LAKESYNC_JWT_SECRET" in line["event"] for line in server.lines())
    assert requests.get(server.url + "/sync/gw/metrics", timeout=DEADLINE).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "gateway.example"])
def test_without_a_secret_a_server_for_other_machines_does_not_start(spawn, host):
    server = spawn(ready=False, LAKESYNC_JWT_SECRET="", LAKESYNC_GATEWAY_HOST=host)
    assert server.process.returncode == 1
    (line,) = server.lines()
    assert line["code"] == "CONFIGURATION_ERROR"
    assert "LAKESYNC_JWT_SECRET" in line["reason"]


def test_a_port_in_use_is_an_error_with_its_number(spawn):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = spawn(ready=False, LAKESYNC_GATEWAY_PORT=str(port))
    assert server.process.returncode == 1
    assert str(port) in server.lines()[0]["reason"]


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--port=1", 2)])
def test_an_argument_of_the_module_starts_no_server(tmp_path, argument, code):
    command = [sys.executable, "-m", "gateway", argument]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
    place = {"LAKESYNC_DATA_DIR": str(tmp_path / "data"), "LAKESYNC_GATEWAY_PORT": "0"}
    ended = subprocess.run(command, capture_output=True, text=True, env=clean | place, timeout=DEADLINE, check=False)
    assert ended.returncode == code, ended.stderr
    assert "python -m gateway" in ended.stdout + ended.stderr
    assert not (tmp_path / "data").exists()


def test_a_second_server_on_the_same_store_is_rejected(spawn):
    spawn()
    second = spawn(ready=False)
    assert second.process.returncode == 1
    assert second.lines()[-1]["code"] == "STAGING_UNAVAILABLE"


def test_the_gateway_imports_neither_spark_nor_dagster():
    code = "import sys, lakesync.cli.app, gateway.__main__; print(*sys.modules)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean)
    assert {"pyspark", "dagster", "pandas", "pyarrow"} & set(found.stdout.split()) == set()


def test_a_clock_offset_applies_to_stamps_and_not_to_tokens(spawn, tmp_path):
    days = 4000
    offset = tmp_path / "offset"
    offset.write_text(str(-days * 86_400_000))
    server = spawn(LAKESYNC_CLOCK_OFFSET_FILE=str(offset))
    alice = server.client("alice")
    now = wall_ms()
    answer = alice.push(delta("t1", {"n": 1}, client="alice", hlc=now << 16))
    assert answer.json()["code"] == "CLOCK_DRIFT"
    then = now - days * 86_400_000
    assert alice.push(delta("t1", {"n": 1}, client="alice", hlc=then << 16)).status_code == 200
    page = server.client("bob").pull().json()
    assert abs((int(page["serverHlc"]) >> 16) - then) < 60_000


def test_two_servers_on_one_postgres_serve_each_others_pushes(own_database, spawn):
    one, other = (spawn(LAKESYNC_STAGING_URL=own_database, LAKESYNC_DATA_DIR="") for _ in range(2))
    alice, bob = one.client("alice"), other.client("bob")
    since = "0"
    for n in range(20):
        writer, reader = (alice, bob) if n % 2 else (bob, alice)
        pushed = writer.push(delta(f"t{n}", {"n": n}, client=writer.client_id))
        assert pushed.status_code == 200, pushed.text
        assert f"t{n}" in [each["rowId"] for each in reader.pull(since).json()["deltas"]]
    other.process.kill()
    assert len(one.client("carol").pull().json()["deltas"]) == 20
