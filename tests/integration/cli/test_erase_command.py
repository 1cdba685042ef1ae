"""`lakesync erase`, through a running gateway and on a store that no process has open."""

from __future__ import annotations

import msgspec
import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.cli.exit_codes import ExitCode
from lakesync.staging.records import Erasure
from tests.integration.gateway_support import DEADLINE, SERVICE, delta


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Calls the command with the data folder of this test."""
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    monkeypatch.delenv("LAKESYNC_SERVICE_TOKEN", raising=False)

    def run(*arguments, answer=""):
        line = ["erase", "--gateway", "gw", "--data", str(tmp_path / "data"), *arguments]
        return CliRunner().invoke(app, line, input=answer, catch_exceptions=True)

    return run


def test_a_row_is_erased_through_the_gateway_that_owns_the_store(spawn, command, monkeypatch):
    server = spawn()
    alice = server.client("alice")
    assert alice.push(delta("t1", {"title": "secret"}, client="alice")).status_code == 200
    assert alice.push(delta("t2", {"title": "kept"}, client="alice")).status_code == 200
    bob = server.client("bob")
    page = bob.pull().json()
    assert len(page["deltas"]) == 2
    refused = command("--table", "todos", "--row", "t1", "--yes")
    assert refused.exit_code == ExitCode.USAGE
    assert "LAKESYNC_SERVICE_TOKEN" in refused.stderr
    monkeypatch.setenv("LAKESYNC_SERVICE_TOKEN", SERVICE)
    monkeypatch.setenv("LAKESYNC_GATEWAY_URL", server.url)
    result = command("--table", "todos", "--row", "t1", "--json", "--yes")
    erasure = msgspec.json.decode(result.stdout, type=Erasure)
    assert (erasure.table, erasure.row_id, erasure.deltas, erasure.row_count) == ("todos", "t1", 1, 1)
    (tombstone,) = bob.pull(page["serverHlc"]).json()["deltas"]
    assert (tombstone["op"], tombstone["rowId"], tombstone["columns"]) == ("DELETE", "t1", [])
    assert msgspec.convert(server.internal("erasures", gateway="gw"), list[Erasure]) == [erasure]
    unknown = command("--table", "todos", "--row", "nothing", "--yes")
    assert (unknown.exit_code, unknown.stdout) == (ExitCode.FAILED, "")
    assert "nothing" in unknown.stderr


def test_a_client_is_erased_from_a_store_without_a_gateway(spawn, command):
    server = spawn()
    assert server.client("alice").push(delta("t1", {"title": "secret"}, client="alice")).status_code == 200
    assert server.client("bob").push(delta("t2", {"title": "kept"}, client="bob")).status_code == 200
    server.process.kill()
    server.process.wait(DEADLINE)
    asked = command("--client", "alice", answer="y\n")
    assert asked.exit_code == ExitCode.USAGE
    assert "This cannot be undone" in asked.stderr
    result = command("--client", "alice", "--yes")
    assert "erased everything that client 'alice' wrote: 1 row, 1 unflushed delta" in result.stdout
    assert "erase them with --client import:alice" in result.stderr
    imports = command("--client", "import:alice", "--yes")
    assert (imports.exit_code, imports.stderr.count("imported")) == (ExitCode.FAILED, 0)
    again = spawn()
    assert [each["rowId"] for each in again.client("carol").pull().json()["deltas"]] == ["t2"]


def test_on_postgres_a_client_is_erased_beside_the_process_that_serves_it(spawn, command, own_database, monkeypatch):
    monkeypatch.setenv("LAKESYNC_STAGING_URL", own_database)
    server = spawn(LAKESYNC_STAGING_URL=own_database)
    assert server.client("alice").push(delta("t1", {"title": "secret"}, client="alice")).status_code == 200
    assert server.client("bob").push(delta("t2", {"title": "kept"}, client="bob")).status_code == 200
    carol = server.client("carol")
    page = carol.pull().json()
    assert len(page["deltas"]) == 2
    result = command("--client", "alice", "--yes")
    assert "erased everything that client 'alice' wrote: 1 row, 1 unflushed delta" in result.stdout
    (tombstone,) = carol.pull(page["serverHlc"]).json()["deltas"]
    assert (tombstone["op"], tombstone["rowId"]) == ("DELETE", "t1")
    assert [each["rowId"] for each in server.client("dan").pull().json()["deltas"]] == ["t2"]


@pytest.mark.parametrize(
    "given", [(), ("--table", "t"), ("--row", "r"), ("--client", "c", "--table", "t", "--row", "r")]
)
def test_erase_requires_a_row_or_a_client(command, given):
    result = command(*given, "--yes")
    assert result.exit_code == 2
    assert "--client" in result.output
