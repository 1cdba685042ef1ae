"""A destroyed staging store is rebuilt by the command from a lake that a real flush wrote."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from typer.testing import CliRunner

from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.gateways_table import store_config
from lakehouse.history.flush import flush_backlog
from lakehouse.sessions import session
from lakehouse.table_definitions import LakeNames
from lakesync.cli.app import app
from lakesync.cli.local.lake_history import LakeHistory
from lakesync.engine.rebuild import RebuildReport
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.schema import parse_schema
from lakesync.staging.remote import RemoteStore
from tests.integration.gateway_support import SERVICE, delta

ODD = "${env:HOME} ${spark.app.id} '; DROP \\ \n"
"""A constant that Spark's variable substitution, or a statement's text, would change."""
RULES = {
    "version": 1,
    "buckets": [
        {"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]},
        {"name": "odd", "tables": ["odd"], "filters": [{"column": "team", "op": "eq", "value": ODD}]},
    ],
}
SCHEMA = {"table": "todos", "columns": [{"name": "team", "type": "string"}, {"name": "size", "type": "number"}]}

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


@pytest.mark.slow
def test_clients_continue_after_a_destroyed_store_is_rebuilt(spawn, spark_server, tmp_path, monkeypatch):
    config = spark_server["config"].replace(lake={"system_namespace": "sys_rebuild", "namespace": "tab_rebuild"})
    names = LakeNames(config.lake.catalog, "sys_rebuild", "tab_rebuild")
    with pytest.raises(LakeUnavailableError, match=r"sys_rebuild\.deltas"):
        LakeHistory(config)
    first = spawn(LAKESYNC_SECRET_KEY="the key that seals this test's connectors")
    alice, bob = first.client("alice", team="red"), first.client("bob", team="blue")
    store = RemoteStore(first.url, SERVICE)
    sent = []
    for number in range(30):
        client, team = (alice, "red") if number % 3 else (bob, "blue")
        made = delta(f"t{number % 20}", {"team": team, "size": number}, client=client.client_id)
        assert client.push(made).status_code == 200
        sent.append((client, made))
    admin = alice.admin()
    assert admin.call("POST", "/admin/schema/{gw}", json=SCHEMA).status_code == 200
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=RULES).status_code == 200
    hook = {"name": "hook", "type": "webhook", "webhook": {"url": "https://example.com/", "secret": "a plain secret"}}
    assert admin.call("POST", "/admin/connectors/{gw}", json=hook).status_code == 200
    registered = store.connectors("gw")
    before = alice.pull(limit=1000).json()
    with session(config) as spark:
        hold = store.cut_point("gw")
        flush_backlog(spark, store, names=names)
        make_checkpoint(spark, store, hold, [parse_schema(SCHEMA)], directory_uri=tmp_path.as_uri(), names=names)
        assert store_config(spark, "gw", store.gateway_config("gw"), store.connectors("gw"), names) is False
        assert spark.table(names.gateways).count() == 1
        (newest,) = spark.table(f"{names.gateways}.snapshots").collect()
    assert newest["summary"]["engine-name"] == "spark"
    with LakeHistory(config) as history:
        kept = history.config("gw")
        assert kept == store.gateway_config("gw")
        assert history.connectors("gw") == registered
    assert "a plain secret" not in msgspec.json.encode(registered).decode()
    assert ODD in {part.value for bucket in kept.rules.buckets for part in bucket.filters}
    lost = delta("lost", {"team": "red", "size": 1}, client="alice")
    assert alice.push(lost).status_code == 200
    store.close()
    first.process.kill()
    first.process.wait()
    shutil.rmtree(tmp_path / "data" / "staging")

    for name, value in config.environment().items():
        monkeypatch.setenv(name, value)
    url = f"sqlite://{tmp_path / 'data' / 'staging'}"
    result = CliRunner().invoke(
        app, ["staging", "rebuild", "--from-lake", "--staging", url, "--json"], catch_exceptions=False
    )
    (done,) = msgspec.json.decode(result.stdout, type=list[RebuildReport])
    assert (done.gateway, done.deltas, done.schemas, done.rules, done.connectors) == ("gw", 30, 1, True, 1)
    again = CliRunner().invoke(app, ["staging", "rebuild", "--from-lake", "--staging", url])
    assert "--replace" in again.stderr

    second = spawn(LAKESYNC_DATA_DIR=str(tmp_path / "data"))
    alice, bob = second.client("alice", team="red"), second.client("bob", team="blue")
    assert "mine" in alice.admin().call("GET", "/admin/sync-rules/{gw}").text
    resync = alice.call(
        "GET",
        "/sync/{gw}/pull",
        params={"since": before["serverHlc"], "clientId": "alice"},
        headers={"X-LakeSync-Client": "test"},
    )
    assert (resync.status_code, resync.json()["code"]) == (409, "RESYNC_REQUIRED")
    rows = _apply({}, alice.pull(before["serverHlc"], limit=1000).json()["deltas"])
    assert rows == _apply({}, before["deltas"])
    for client, made in sent:
        assert (alice if client.client_id == "alice" else bob).push(made).json()["accepted"] == 1
    assert alice.push(lost).json()["accepted"] == 1
    carol = second.client("carol", team="red").pull(limit=1000).json()["deltas"]
    assert _apply({}, carol) == {**rows, "lost": {"team": "red", "size": 1}}


def _apply(rows, deltas):
    for each in deltas:
        if each["op"] == "DELETE":
            rows.pop(each["rowId"], None)
        else:
            row = {} if each["op"] == "INSERT" else rows[each["rowId"]]
            rows[each["rowId"]] = {**row, **{cell["column"]: cell["value"] for cell in each["columns"]}}
    return rows
