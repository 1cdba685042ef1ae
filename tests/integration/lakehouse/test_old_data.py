"""The data of each earlier version in `tests/old_data` opens and can be used."""

from __future__ import annotations

import json
import subprocess

import pytest

import lakesync
from lakesync import HLC, SyncPush, extract_delta
from lakesync.analysis.provenance import row_history
from lakesync.analysis.query import query
from lakesync.config import load
from tests.e2e.up_support import Up
from tests.integration.gateway_support import sign
from tests.old_data.make import TODOS
from tests.old_data.place import FIXTURES, unpacked
from tests.postgres_server import postgres_program

VERSIONS = sorted(path.name for path in FIXTURES.iterdir() if (path / "expected.json").exists())

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def expected(version):
    """The rows of each client, title by row id."""
    return json.loads((FIXTURES / version / "expected.json").read_text())


@pytest.fixture
def project(version):
    """The folder of a project of that version."""
    with unpacked(version) as folder:
        yield folder


def check_store(staging, version):
    """Pull the old rows, push new ones, and push the old ones again."""
    with lakesync.open_gateway("shop", staging=staging, background=False) as gateway:
        for name, rows in expected(version).items():
            seen = gateway.submit_peek({"sub": name}, None, 1000).result().deltas
            titles = {each.row_id: cell.decoded() for each in seen for cell in each.columns if cell.column == "title"}
            assert titles == rows
            once = tuple(each for each in seen if each.op == "INSERT" and "changed" not in titles[each.row_id])
            head = gateway.buffer_stats()
            gateway.handle_push(SyncPush(name, once))
            assert gateway.buffer_stats() == head, "the ids of earlier pushes are known"
        row = {"title": "of a later version", "owner": "bob"}
        delta = extract_delta(None, row, table="todos", row_id="later", client_id="bob", hlc=HLC().now())
        gateway.handle_push(SyncPush("bob", (delta,)))
        assert delta in gateway.submit_peek({"sub": "bob"}, None, 1000).result().deltas


def test_a_sqlite_store_of_an_earlier_version_opens(project, version):
    check_store(project / "lakesync-data" / "staging", version)


def test_a_postgres_store_of_an_earlier_version_opens(own_database, version):
    load_dump = [postgres_program("psql"), "--quiet", "--set", "ON_ERROR_STOP=1", own_database]
    subprocess.run([*load_dump, "--file", FIXTURES / version / "postgres.sql"], check=True, capture_output=True)
    check_store(own_database, version)


def test_a_lake_of_an_earlier_version_has_its_rows_and_their_history(project, version):
    config = load({"data_dir": project / "lakesync-data", "remote": {"gateway": "shop"}})
    rows = {title: row for owner in expected(version).values() for row, title in owner.items()}
    found = query(config, "SELECT _row, title FROM todos").to_pylist()
    assert {row["title"]: row["_row"] for row in found} == rows
    history = row_history(config, "todos", rows["changed"], "shop")
    assert [each.op for each in history] == ["INSERT", "UPDATE"]


def test_a_client_file_of_an_earlier_version_keeps_its_unsent_edits(project, version, served):
    with lakesync.open(
        project / "alice.db", url=served.url, gateway="shop", token=sign("alice", "shop"), schemas=[TODOS]
    ) as alice:
        titles = {row["title"] for row in alice.query("SELECT title FROM todos")}
        assert titles == {*expected(version)["alice"].values(), "not sent yet"}
        assert [edit.values["title"] for edit in alice.pending()] == ["not sent yet"]


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_lakesync_up_opens_an_older_project(project, version):
    up = Up(project / "lakesync-data")
    up.config = str(project / "lakesync.toml")
    try:
        url = up.start().report()["gateway"]["url"]
        token = up.ask("token", "create", "--client", "alice").strip()
        with lakesync.open(project / "alice.db", url=url, gateway="shop", token=token, schemas=[TODOS]) as alice:
            alice.sync()
            assert alice.pending() == []
        up.ask("flush")
        found = [
            json.loads(line)["title"] for line in up.ask("query", "SELECT title FROM todos", "--json").splitlines()
        ]
        before = [title for rows in expected(version).values() for title in rows.values()]
        assert sorted(found) == sorted([*before, "not sent yet"])
    finally:
        up.end()
