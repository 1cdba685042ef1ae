"""The pytest fixtures that LakeSync provides to apps, in a separate test run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

THEIRS = """
import pytest
from lakesync.client import UnreachableError
from lakesync.rules.model import parse_rules

NOTES = {"table": "notes", "columns": [{"name": "text", "type": "string"}, {"name": "team", "type": "string"}]}


def test_a_note_reaches_every_client(lakesync_client):
    alice, bob = lakesync_client("alice", [NOTES]), lakesync_client("bob", [NOTES])
    alice["notes"].insert(text="hello")
    alice.sync()
    bob.sync()
    assert [row["text"] for row in bob["notes"]] == ["hello"]


def test_nothing_is_lost_offline_or_sent_twice(lakesync_client, lakesync_network, lakesync_gateway):
    alice = lakesync_client("alice", [NOTES])
    alice["notes"].insert(text="hello")
    lakesync_network.down = True
    with pytest.raises(UnreachableError):
        alice.sync()
    with pytest.raises(UnreachableError):
        alice.coordinator.describe_actions()
    lakesync_network.down, lakesync_network.lose_responses = False, True
    with pytest.raises(UnreachableError):
        alice.sync()
    alice.close()
    lakesync_network.lose_responses = False
    again = lakesync_client("alice", [NOTES])
    again.sync()
    assert again.pending() == []
    assert lakesync_gateway.stats().log_size == 1


def test_rules_see_the_claims(lakesync_client, lakesync_gateway):
    lakesync_gateway.set_rules(parse_rules({"version": 1, "buckets": [{"name": "team", "tables": ["notes"],
        "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}]}))
    red, blue = lakesync_client("ann", [NOTES], team="red"), lakesync_client("ben", [NOTES], team="blue")
    red["notes"].insert(text="ours", team="red")
    red.sync()
    blue.sync()
    assert len(blue["notes"]) == 0
"""


def test_an_apps_tests_have_a_gateway_and_clients(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:lakesync", "-p", "lakesync.testing.plugin"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_package_registers_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"lakesync": "lakesync.testing.plugin"}
