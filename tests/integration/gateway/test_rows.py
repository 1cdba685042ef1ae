"""The admin's view of rows, of the newest checkpoint, and of suspended work."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.cli.exit_codes import ExitCode
from lakesync.engine.checks import EngineLimits
from lakesync.flush import MemoryFlushQueue
from lakesync.wire.frames import read_checkpoint
from tests.integration.gateway.openapi_support import publish_checkpoint, set_a_job_aside
from tests.integration.gateway_support import delta, sign, wall_ms


def test_an_admin_reads_all_visible_rows_of_a_table_by_pages(served):
    client = served.client()
    client.admin().call("POST", "/admin/sync-rules/{gw}", json={"version": 1, "buckets": [NOBODY]})
    stamp = wall_ms() << 16
    pushed = [delta(f"t{n}", {"n": n, "o": {"deep": [n]}}, hlc=stamp + n) for n in range(5)]
    gone = delta("t3", None, before={"n": 3}, hlc=stamp + 9)
    assert client.push(*pushed, gone, delta("other", {"n": 1}, table="todos2")).status_code == 200
    assert served.client("bob", client.gateway).pull().json()["deltas"] == []
    found, after = [], None
    for _ in range(3):
        page = client.admin().call("GET", "/admin/rows/{gw}", params={"table": "todos", "limit": "2", "after": after})
        found += page.json()["rows"]
        after = page.json()["next"]
    assert [each["rowId"] for each in found] == ["t0", "t1", "t2", "t4"]
    assert found[2]["values"] == {"n": 2, "o": {"deep": [2]}}
    assert after is None
    assert client.call("GET", "/admin/rows/{gw}", params={"table": "todos"}).status_code == 403


def test_a_page_of_an_admins_rows_is_bounded_by_bytes(served):
    client = served.client()
    for row in range(40):
        assert client.push(delta(f"r{row:02}", {"text": "x" * 300_000})).ok
    found, after = [], None
    while not found or after is not None:
        page = client.admin().call("GET", "/admin/rows/{gw}", params={"table": "todos", "after": after})
        assert len(page.content) < (4 << 20) + 400_000
        found += [each["rowId"] for each in page.json()["rows"]]
        after = page.json()["next"]
    assert found == [f"r{row:02}" for row in range(40)]


@pytest.mark.parametrize(
    "query", [{}, {"table": "no table"}, {"table": "t", "limit": "0"}, {"table": "t", "after": ""}]
)
def test_invalid_row_queries_are_rejected(served, query):
    assert served.client().admin().call("GET", "/admin/rows/{gw}", params=query).status_code == 400


def test_metrics_report_the_newest_checkpoint_and_whether_rules_are_newer(served, tmp_path):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    admin = client.admin()
    before = admin.call("GET", "/admin/metrics/{gw}").json()
    assert (before["checkpoint"], before["rulesVersion"]) == (None, 0)
    publish_checkpoint(served.engine.store, client.gateway, tmp_path)
    admin.call("POST", "/admin/sync-rules/{gw}", json={"version": 1, "buckets": [NOBODY]})
    metrics = admin.call("GET", "/admin/metrics/{gw}").json()
    assert metrics["checkpoint"]["arrivalHlc"] == before["lastArrivalHlc"]
    assert (metrics["checkpoint"]["rulesVersion"], metrics["rulesVersion"], metrics["checkpoint"]["tables"]) == (
        0,
        1,
        ["todos"],
    )
    fetched = tmp_path / "frames.bin"
    result = _command(served, served.client("new", client.gateway), "checkpoint", "fetch", str(fetched), "--json")
    assert result.exit_code == ExitCode.FAILED  # its rules are older
    assert not fetched.exists()
    shown = _command(served, client, "checkpoint", "show")
    reason = "the rules are newer than the newest checkpoint"
    assert f"served   no: {reason}" in shown.stdout
    assert f"not served: {reason}" in " ".join(_command(served, client, "status").stdout.split())


def test_a_checkpoint_from_before_an_erasure_is_shown_as_not_served(served, tmp_path):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    publish_checkpoint(served.engine.store, client.gateway, tmp_path)
    admin = client.admin()
    assert admin.call("GET", "/admin/metrics/{gw}").json()["checkpoint"]["notServedReason"] is None
    served.engine.store.erase_row(client.gateway, "todos", "t1")
    reason = "something was erased that the newest checkpoint may hold"
    assert admin.call("GET", "/admin/metrics/{gw}").json()["checkpoint"]["notServedReason"] == reason
    assert f"served   no: {reason}" in _command(served, client, "checkpoint", "show").stdout
    assert not json.loads(_command(served, client, "checkpoint", "show", "--json").stdout)["served"]
    assert f"not served: {reason}" in " ".join(_command(served, client, "status").stdout.split())


def test_checkpoint_fetch_writes_all_frames(served, tmp_path):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    publish_checkpoint(served.engine.store, client.gateway, tmp_path)
    fetched = tmp_path / "frames.bin"
    fetched_counts = json.loads(_command(served, client, "checkpoint", "fetch", str(fetched), "--json").stdout)
    assert (fetched_counts["frames"], fetched_counts["deltas"]) == (1, 0)
    with fetched.open("rb") as file:
        assert len(list(read_checkpoint(file))) == 1
    assert "served   yes" in _command(served, client, "checkpoint", "show").stdout


def test_dead_letters_of_tables_are_listed_shown_retried_and_dropped(served, monkeypatch):
    queue = MemoryFlushQueue()
    monkeypatch.setattr(type(served.engine), "queue", queue)
    client = served.client()
    set_a_job_aside(queue, client.gateway)
    (listed,) = map(json.loads, _command(served, client, "dlq", "list", "--kind", "work", "--json").stdout.splitlines())
    assert (listed["kind"], listed["table"], listed["why"]) == ("work", "todos", "it does not fit")
    assert "t1" in _command(served, client, "dlq", "show", listed["id"]).stdout
    assert _command(served, client, "dlq", "retry", listed["id"]).exit_code == 0
    assert [job.job_id for job in queue.pending(client.gateway)] == [listed["id"]]
    assert _command(served, client, "dlq", "retry", listed["id"]).exit_code == ExitCode.FAILED
    queue.set_aside(queue.pending(client.gateway)[0], "again")
    assert _command(served, client, "dlq", "drop", "--all", "--yes").exit_code == 0
    assert queue.failed(client.gateway) == queue.pending(client.gateway) == []


def test_metrics_report_backpressure_and_explain_reports_the_rejected_row(serve):
    served = serve(limits=EngineLimits(max_backpressure_bytes=1))
    client = served.client()
    assert "rejected" not in _command(served, client, "status").stdout
    client.push(delta("t1", {"n": 1}))
    assert client.push(delta("t2", {"n": 1})).status_code == 503
    assert "pushes         rejected: more than 1 unflushed byte in main" in _command(served, client, "status").stdout
    output = _command(served, client, "explain", "todos", "t2", "--client", "bob").stdout
    assert ": BACKPRESSURE_ERROR" in " ".join(output.split())


NOBODY = {"name": "none", "tables": [], "filters": [{"column": "owner", "op": "eq", "value": "nobody"}]}


def _command(served, client, *words):
    """Run a command as an admin of the client's gateway."""
    variables = {
        "LAKESYNC_CONFIG": "",
        "LAKESYNC_TOKEN": sign("ops", client.gateway, role="admin"),
        "LAKESYNC_REMOTE_URL": served.url,
        "LAKESYNC_DATA_DIR": "/nonexistent",
    }
    return CliRunner().invoke(app, list(words), env=variables)
