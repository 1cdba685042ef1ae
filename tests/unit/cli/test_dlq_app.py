"""`lakesync dlq --app`: the dead letters in an app's own database."""

from __future__ import annotations

import json

import pytest

import lakesync
from lakesync.client import LocalTransport

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "n", "type": "number"}]}


@pytest.fixture
def app_file(tmp_path):
    """The database of an app with two rejected changes and a failed action."""
    path = tmp_path / "app.db"
    with lakesync.open_gateway("g") as gateway:
        gateway.register_schema({"table": "todos", "columns": TODOS["columns"][:1]})
        with lakesync.open(path, client_id="alice", schemas=[TODOS], transport=LocalTransport(gateway)) as alice:
            alice["todos"].insert({"title": "fits"}, row_id="good")
            alice["todos"].insert({"title": "does not", "n": 7}, row_id="bad")
            alice["todos"].insert({"title": "neither", "n": 8}, row_id="worse")
            alice.execute_action("desk", "open_ticket", {"title": "help"})
            alice.sync()
    return path


def listed(run, path):
    result = run("dlq", "list", "--app", path, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_rejected_changes_and_failed_actions_are_listed_and_shown(run, app_file):
    bad, worse, action = listed(run, app_file)
    assert (bad["kind"], bad["table"], bad["what"]) == ("edit", "todos", 'INSERT of row bad: title = "does not", n = 7')
    assert bad["why"].startswith("SCHEMA_ERROR: ")
    assert worse["what"].startswith("INSERT of row worse")
    assert (action["kind"], action["what"]) == ("action", "open_ticket by desk, tried 1 time")
    shown = run("dlq", "show", bad["id"], "--app", app_file)
    assert shown.exit_code == 0
    assert "SCHEMA_ERROR" in shown.stdout


def test_dead_letters_of_an_app_are_retried_and_dropped(run, app_file):
    bad, _, action = listed(run, app_file)
    assert run("dlq", "drop", bad["id"], "--app", app_file, "--yes").stdout == f"dropped {bad['id']}\n"
    assert bad["id"] not in [each["id"] for each in listed(run, app_file)]
    assert run("dlq", "retry", "--all", "--app", app_file).exit_code == 0
    assert listed(run, app_file) == []
    with (
        lakesync.open_gateway("g") as gateway,
        lakesync.open(app_file, schemas=[TODOS], transport=LocalTransport(gateway)) as alice,
    ):
        assert [row["row_id"] for row in alice["todos"]] == ["good", "worse"]
        assert [edit.delta.row_id for edit in alice.pending()] == ["worse"]
        assert alice.action(action["id"].partition(":")[2]).status == "waiting"


def test_a_file_that_is_not_an_apps_database_is_rejected(run, app_file, tmp_path):
    assert run("dlq", "show", "edit:99", "--app", app_file).exit_code == 1
    assert run("dlq", "retry", "edit:99", "--app", app_file).exit_code == 1
    for name, text in [("missing.db", None), ("notes.txt", "no database at all")]:
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        result = run("dlq", "list", "--app", path)
        assert (result.exit_code, name in result.stderr) == (2, True)
