"""Gateway and pipeline started separately, with `lakesync gateway` and `lakesync pipeline`; Dagster is on Postgres."""

import json

import pytest
import requests

import lakesync
from lakesync.cli.up.process import Process, free_ports
from tests.e2e.up_support import COMMAND, Up
from tests.integration.gateway_support import sign
from tests.postgres_server import database

SECRET = "0123456789abcdef" * 4
SETTINGS = """
jwt_secret = "env:TEST_JWT_SECRET"

[staging]
url = "env:TEST_STAGING"

[gateway]
port = {port}

[dagster]
storage_url = "env:TEST_STORAGE"

[dagster.run_launcher]
module = "dagster"
class = "DefaultRunLauncher"

[gateways.shop]
schemas = ["todos.json"]
"""
TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}


def answers(url):
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


@pytest.fixture
def apart(tmp_path, postgres_uri, monkeypatch):
    """A running `lakesync gateway`, and a `lakesync pipeline` that is not started yet."""
    with database(postgres_uri) as staging, database(postgres_uri) as storage:
        (port,) = free_ports(1)
        for name, value in {"JWT_SECRET": SECRET, "STAGING": staging, "STORAGE": storage}.items():
            monkeypatch.setenv(f"TEST_{name}", value)
        pipeline = Up(tmp_path / "data", SETTINGS.format(port=port), words=("pipeline",))
        (tmp_path / "todos.json").write_text(json.dumps(TODOS))
        environment = {"LAKESYNC_CONFIG": pipeline.config, "LAKESYNC_DATA_DIR": str(tmp_path / "gateway")}
        gateway = Process("gateway", [*COMMAND, "gateway"], environment, tmp_path / "gateway.log")
        try:
            url = f"http://127.0.0.1:{port}"
            gateway.wait_ready(lambda: answers(f"{url}/ready"), timeout=240)
            yield pipeline, url
        finally:
            pipeline.end()
            gateway.stop(grace=60)


@pytest.mark.timeout(600)
def test_a_row_reaches_the_lake_of_a_separate_pipeline(apart, tmp_path):
    pipeline, url = apart
    with lakesync.open(
        tmp_path / "alice.db", url=url, gateway="shop", token=sign("alice", "shop", secret=SECRET), schemas=[TODOS]
    ) as alice:
        alice["todos"].insert(title="Buy oat milk")
        alice.sync()
    started = pipeline.start().report()
    assert "gateway" not in started
    assert "runs" not in started
    assert not (pipeline.folder / "secrets.json").exists()
    assert not list((pipeline.folder / "dagster").rglob("*.db")), "Dagster's records are on Postgres"
    pipeline.ask("flush", "--gateway", "shop", "--wait", "300")
    [row] = pipeline.ask("query", "SELECT title FROM todos", "--json").splitlines()
    assert json.loads(row) == {"title": "Buy oat milk"}
    assert pipeline.failed_ticks() == []
