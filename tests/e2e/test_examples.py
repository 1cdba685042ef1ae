"""The examples of `lakesync init --example` run unchanged: tiers, a migration, a Jira site and a Postgres."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing

import psycopg
import pytest

from lakesync.cli.up.process import free_ports
from tests.e2e.up_support import COMMAND, Up

EXAMPLES = ("tiers", "migration", "jira", "postgres")
ISSUES, PRODUCTS = 7, 5
SOON = 300
DAY_MS = 86_400_000


@pytest.fixture
def jira():
    """Start a Jira site as the example describes; return its port."""
    (port,) = free_ports(1)
    command = [*COMMAND, "fake", "jira", "--port", str(port), "--issues", str(ISSUES), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        yield port
        process.send_signal(signal.SIGINT)


@pytest.fixture
def project(tmp_path, monkeypatch, jira, own_database):
    """A new project with every example, and the variables that it asks for."""
    with psycopg.connect(own_database, autocommit=True) as db:
        db.execute("CREATE TABLE products (id int PRIMARY KEY, name text, price float8, updated_at timestamptz)")
        db.execute(
            "INSERT INTO products SELECT n, 'product ' || n, n, now() - interval '1 h' FROM generate_series(1, %s) n",
            [PRODUCTS],
        )
    monkeypatch.setenv("CONNECTOR_app_JIRATOKEN", "jira-token")
    monkeypatch.setenv("CONNECTOR_app_STORE", own_database)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
    examples = [word for example in EXAMPLES for word in ("--example", example)]
    subprocess.run([*COMMAND, "init", *examples], cwd=tmp_path, env=clean, check=True, capture_output=True)
    settings = (tmp_path / "lakesync.toml").read_text()
    assert "http://127.0.0.1:8081" in settings
    running = Up(tmp_path / "lakesync-data", settings.replace("http://127.0.0.1:8081", f"http://127.0.0.1:{jira}"))
    yield running
    running.end()


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_every_example_of_lakesync_init_runs_as_it_is_written(project):
    project.start()
    folder = project.folder.parent
    now = int(time.time() * 1000)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    folder.joinpath("todos.jsonl").write_text(
        "\n".join(
            json.dumps(
                {
                    "op": "INSERT",
                    "table": "todos",
                    "rowId": row,
                    "clientId": "alice",
                    "columns": [{"column": "title", "value": row}, {"column": "owner", "value": "alice"}],
                    "hlc": str((now - age * DAY_MS) << 16),
                }
            )
            for row, age in (("old", 40), ("young", 0))
        )
    )
    project.ask("push", "todos.jsonl", "--client", "alice")
    project.ask("flush", "--wait", str(SOON))

    def count(table):
        done = subprocess.run(
            [*COMMAND, "query", f"SELECT count(*) AS n FROM {table}", "--json", "--data", str(project.folder)],
            env={**os.environ, "LAKESYNC_CONFIG": project.config},
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(done.stdout)["n"] if done.returncode == 0 else 0

    project.wait(lambda: count("jira_issues") >= 1, SOON)
    project.wait(lambda: count("products") == PRODUCTS, SOON)
    assert count("todos") == 2

    def deltas(database):
        with closing(sqlite3.connect(project.folder / f"{database}.db")) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            return db.execute("SELECT row_id FROM lakesync_deltas").fetchall() if "lakesync_deltas" in tables else []

    project.wait(lambda: ("young",) in deltas("recent"), SOON)
    old = time.strftime("%Y-%m-%d", time.gmtime(now / 1000 - 40 * 86_400))
    output = project.ask("backfill", "tiers/aged", "--from", old, "--wait", str(SOON), "--json")
    assert set(json.loads(output.splitlines()[0])["runs"].values()) == {"SUCCESS"}
    assert [row for (row,) in deltas("recent") if row in {"old", "young"}] == ["young"]
    assert any((project.folder / "archive").rglob("*.parquet"))

    output = project.ask("backfill", "migrations/away", "--from", today, "--to", today, "--wait", str(SOON), "--json")
    assert set(json.loads(output.splitlines()[0])["runs"].values()) == {"SUCCESS"}
    assert any((project.folder / "copy").rglob("*.parquet"))
