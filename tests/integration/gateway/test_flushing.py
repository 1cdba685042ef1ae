"""A server without a pipeline flushes periodically, and its clients pull from the configured sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
import requests

from lakesync.adapters import LocalDisk, ObjectDeltas
from tests.integration.embedded.embedded_support import kept
from tests.integration.gateway_support import DEADLINE, delta, until


def metric(server, name: str) -> float:
    """The value of one of the server's metrics."""
    text = requests.get(server.url + "/metrics", timeout=DEADLINE).text
    found = re.search(rf"^{name} ([0-9.e+]+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_the_gateway_flushes_old_deltas_and_the_rest_on_shutdown(spawn, tmp_path):
    disk = ObjectDeltas(LocalDisk(tmp_path / "objects"))
    server = spawn(LAKESYNC_FLUSH_TO_URI=f"file://{tmp_path}/objects", LAKESYNC_FLUSH_MAX_AGE_SECONDS="0.5")
    alice = server.client("alice")
    first = delta("t1", {"n": 1}, client="alice")
    assert alice.push(first).status_code == 200
    until(lambda: metric(server, "lakesync_flushed_deltas_total") == 1, "the flush")
    assert [stored.delta.delta_id for stored in kept(disk, "gw")] == [first["deltaId"]]
    assert metric(server, "lakesync_flushes_total") == metric(server, "lakesync_flush_seconds_count") == 1
    assert alice.call("GET", "/sync/{gw}/metrics").json()["logSize"] == 0
    last = delta("t2", {"n": 2}, client="alice")
    assert alice.push(last).status_code == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE) == 0
    assert [stored.delta.delta_id for stored in kept(disk, "gw")] == [first["deltaId"], last["deltaId"]]
    assert {line["gateway"] for line in server.lines() if line["event"] == "flushed"} == {"gw"}


def test_an_admin_can_request_a_flush_and_destination_tables_follow(spawn, tmp_path):
    server = spawn(LAKESYNC_FLUSH_TO_URI=f"sqlite://{tmp_path}/d.db", LAKESYNC_FLUSH_MAX_AGE_SECONDS="3600")
    alice = server.client("alice")
    schema = {"table": "todos", "columns": [{"name": "n", "type": "number"}]}
    assert alice.admin().call("POST", "/admin/schema/{gw}", json=schema).status_code == 200
    assert alice.push(delta("t1", {"n": 1}, client="alice")).status_code == 200
    assert alice.admin().call("POST", "/admin/flush/{gw}").status_code == 202

    def rows():
        with closing(sqlite3.connect(f"file:{tmp_path}/d.db?mode=ro", uri=True)) as sql, sql:
            tables = sql.execute("SELECT 1 FROM sqlite_master WHERE name = 'todos'").fetchall()
            return tables and sql.execute("SELECT row_id, n FROM todos").fetchall()

    assert until(rows, "the table") == [("t1", 1)]


def test_an_adapter_that_fails_is_counted_and_loses_nothing(spawn, tmp_path):
    (tmp_path / "objects").write_text("a file where the folder should be")
    server = spawn(LAKESYNC_FLUSH_TO_URI=f"file://{tmp_path}/objects", LAKESYNC_FLUSH_MAX_AGE_SECONDS="0.1")
    alice = server.client("alice")
    assert alice.push(delta("t1", {"n": 1}, client="alice")).status_code == 200
    until(lambda: metric(server, "lakesync_flush_failures_total") >= 1, "a failure")
    assert alice.call("GET", "/sync/{gw}/metrics").json()["logSize"] == 1
    (tmp_path / "objects").unlink()
    until(lambda: metric(server, "lakesync_flushed_deltas_total") == 1, "the flush")


def test_clients_pull_from_a_configured_source(spawn, tmp_path):
    source = f"sqlite://{tmp_path}/source.db"
    first = spawn(LAKESYNC_FLUSH_TO_URI=source, LAKESYNC_FLUSH_MAX_AGE_SECONDS="0.1")
    assert first.client("etl").push(delta("r1", {"n": 1}, client="etl")).status_code == 200
    until(lambda: metric(first, "lakesync_flushed_deltas_total") == 1, "the flush")
    declared = {"reports": {"uri": source, "gateway": "gw"}}
    second = spawn(LAKESYNC_SOURCES=json.dumps(declared), LAKESYNC_DATA_DIR=str(tmp_path / "other"))
    bob = second.client("bob", "another")
    page = bob.pull(source="reports").json()
    assert [(each["op"], each["rowId"]) for each in page["deltas"]] == [("DELETE", "r1"), ("INSERT", "r1")]
    assert page["serverHlc"] == "0"
    posted = bob.call("POST", "/sync/{gw}/pull", json={"clientId": "bob", "sinceHlc": "0", "source": "reports"})
    assert posted.json()["deltas"] == page["deltas"]
    absent = bob.pull(source="absent")
    assert (absent.status_code, absent.json()["code"]) == (404, "NOT_FOUND")
    assert "known: reports" in absent.json()["error"]


def test_the_error_of_a_source_that_cannot_be_read_names_its_file_only_in_the_log(spawn, tmp_path):
    folder = tmp_path / "private"
    declared = {"reports": {"uri": f"file://{folder}", "gateway": "gw"}}
    server = spawn(LAKESYNC_SOURCES=json.dumps(declared))
    if folder.exists():
        shutil.rmtree(folder)
    folder.write_text("a file where the folder should be")
    answer = server.client("bob").pull(source="reports")
    assert (answer.status_code, answer.json()["code"]) == (502, "ADAPTER_ERROR")
    assert "'reports' cannot be read" in answer.json()["error"]
    assert "private" not in answer.text
    reasons = [line for line in server.lines() if line.get("event") == "request failed"]
    assert [line["request_id"] for line in reasons] == [answer.json()["requestId"]]
    assert str(folder) in reasons[0]["error"]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("LAKESYNC_FLUSH_TO_URI", "gopher://hole", "no adapter has the scheme 'gopher'"),
        ("LAKESYNC_SOURCES", '{"s": "file://relative"}', "has no absolute path"),
    ],
)
def test_an_invalid_uri_is_reported_at_the_start(spawn, name, value, reason):
    server = spawn(ready=False, **{name: value})
    assert server.process.returncode == 1
    assert any(reason in line.get("reason", "") for line in server.lines())


def table_rows(path):
    """The rows of the destination's table of todos."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as sql, sql:
        tables = sql.execute("SELECT 1 FROM sqlite_master WHERE name = 'todos'").fetchall()
        return tables and sql.execute("SELECT row_id, n FROM todos ORDER BY row_id").fetchall()


@pytest.mark.parametrize("place", ["flush.after_write", "flush.after_publish", "flush.after_confirm"])
def test_a_row_is_in_its_table_after_a_kill_between_flush_and_materialisation(spawn, tmp_path, place):
    settings = {"LAKESYNC_FLUSH_TO_URI": f"sqlite://{tmp_path}/d.db", "LAKESYNC_FLUSH_MAX_AGE_SECONDS": "3600"}
    first = spawn(LAKESYNC_CRASH_AT=place, **settings)
    alice = first.client("alice")
    schema = {"table": "todos", "columns": [{"name": "n", "type": "number"}]}
    assert alice.admin().call("POST", "/admin/schema/{gw}", json=schema).status_code == 200
    assert alice.push(delta("t1", {"n": 1}, client="alice")).status_code == 200
    assert alice.admin().call("POST", "/admin/flush/{gw}").status_code == 202
    assert first.process.wait(DEADLINE) == -signal.SIGKILL
    second = spawn(**settings)
    if place != "flush.after_confirm":  # the batch is not confirmed yet
        assert second.client("alice").admin().call("POST", "/admin/flush/{gw}").status_code == 202
    assert until(lambda: table_rows(tmp_path / "d.db"), "the table") == [("t1", 1)]
    alice = second.client("alice")
    until(lambda: alice.call("GET", "/sync/{gw}/metrics").json()["logSize"] == 0, "the batch's confirmation")


def test_a_separate_process_works_on_an_object_queue(spawn, tmp_path):
    settings = {
        "LAKESYNC_FLUSH_TO_URI": f"sqlite://{tmp_path}/d.db",
        "LAKESYNC_FLUSH_QUEUE": f"file://{tmp_path}/queue",
        "LAKESYNC_FLUSH_MAX_AGE_SECONDS": "3600",
    }
    server = spawn(**settings)
    alice = server.client("alice")
    schema = {"table": "todos", "columns": [{"name": "n", "type": "number"}]}
    assert alice.admin().call("POST", "/admin/schema/{gw}", json=schema).status_code == 200
    for row in ("t1", "t2"):
        assert alice.push(delta(row, {"n": 1}, client="alice")).status_code == 200
    assert alice.admin().call("POST", "/admin/flush/{gw}").status_code == 202
    until(lambda: metric(server, "lakesync_flushed_deltas_total") == 2, "the flush")
    assert not table_rows(tmp_path / "d.db"), "the gateway leaves the job to another process"
    environment = {**os.environ, **settings, "LAKESYNC_CONFIG": "", "LAKESYNC_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-c", "from lakesync.cli import main; main()", "materialise", "--once", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"done": 1}
    assert table_rows(tmp_path / "d.db") == [("t1", 1), ("t2", 1)]
    assert list((tmp_path / "queue").rglob("*.json")) == []
