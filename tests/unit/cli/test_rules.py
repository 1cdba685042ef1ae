"""Sync rules are validated, simulated and compared without a gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakesync.cli.connection import GatewayConnection
from lakesync.cli.exit_codes import ExitCode
from lakesync.client import UnreachableError


def rules(*buckets):
    return json.dumps({"version": 1, "buckets": buckets})


MINE = {"name": "mine", "tables": ["todos"], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
TEAM = {"name": "team", "tables": ["todos"], "filters": [{"column": "team", "op": "in", "value": "jwt:team"}]}
ROWS = [
    {"table": "todos", "rowId": "t1", "values": {"owner": "alice", "team": "red"}},
    {"table": "todos", "rowId": "t2", "values": {"owner": "bob", "team": "red"}},
    *(
        {"op": op, "table": "notes", "rowId": row, "clientId": "bob", "columns": columns, "hlc": hlc, "deltaId": hlc}
        for op, row, hlc, columns in [
            ("UPDATE", "n1", "2", [{"column": "team", "value": "red"}]),
            ("INSERT", "n1", "1", [{"column": "owner", "value": "bob"}, {"column": "team", "value": "blue"}]),
            ("INSERT", "n2", "3", [{"column": "owner", "value": "bob"}]),
            ("DELETE", "n2", "4", []),
        ]
    ),
]


@pytest.fixture
def files(run):
    Path("mine.json").write_text(rules(MINE))
    Path("team.json").write_text(rules(TEAM))
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    return run


def test_invalid_rules_are_rejected_with_the_reason(files):
    Path("wrong.json").write_text(rules(MINE, MINE))
    result = files("rules", "validate", "wrong.json")
    assert (result.exit_code, result.stdout) == (ExitCode.INVALID, "")
    assert "wrong.json: buckets[1] has the name 'mine'" in result.stderr


def test_rules_must_name_existing_columns(files):
    Path("todos.json").write_text(json.dumps({"table": "todos", "columns": [{"name": "team", "type": "string"}]}))
    assert files("rules", "validate", "team.json", "--schemas", "todos.json").exit_code == 0
    Path("wrong.json").write_text('{"table": "todos"}')
    result = files("rules", "validate", "team.json", "--schemas", "wrong.json")
    assert result.exit_code == ExitCode.INVALID
    assert "wrong.json: " in result.stderr
    result = files("rules", "validate", "mine.json", "--schemas", "todos.json")
    assert result.exit_code == ExitCode.INVALID
    assert "'owner', which table 'todos' lacks" in result.stderr


def test_a_bucket_for_every_table_must_filter_on_columns_of_one(files):
    Path("todos.json").write_text(json.dumps({"table": "todos", "columns": [{"name": "team", "type": "string"}]}))
    Path("rules.json").write_text(rules({**TEAM, "tables": []}))
    assert files("rules", "validate", "rules.json", "--schemas", "todos.json").exit_code == 0
    Path("rules.json").write_text(rules({**MINE, "tables": []}))
    result = files("rules", "validate", "rules.json", "--schemas", "todos.json")
    assert result.exit_code == ExitCode.INVALID
    assert "'mine' filters on owner, which no table in todos.json has" in result.stderr


def test_visible_rows_of_a_client_are_counted(files):
    words = ("rules", "test", "mine.json", "--rows", "rows.jsonl", "--as", "sub=alice", "--as", '{"sub": "bob"}')
    result = [json.loads(line) for line in files(*words, "--list", "--json").stdout.splitlines()]
    assert [(each["as"], each["table"], each["rows"], each["rowIds"]) for each in result] == [
        ("sub=alice", "notes", 1, []),
        ("sub=alice", "todos", 2, ["t1"]),
        ('{"sub": "bob"}', "notes", 1, []),
        ('{"sub": "bob"}', "todos", 2, ["t2"]),
    ]


def test_the_deltas_of_a_row_count_as_one_row(files):
    notes = {**TEAM, "tables": ["notes"]}
    Path("notes.json").write_text(rules(notes))
    words = ("rules", "test", "notes.json", "--rows", "rows.jsonl", "--as", "sub=ann,team=red", "--list", "--json")
    result = [json.loads(line) for line in files(*words).stdout.splitlines()]
    assert [(each["rows"], each["rowIds"]) for each in result if each["table"] == "notes"] == [(1, ["n1"])]


def test_claims_in_a_file_end_before_its_newline(files):
    Path("bob").write_text("team=red,sub=bob\n")
    words = ("rules", "test", "mine.json", "--rows", "rows.jsonl", "--as", "@bob", "--list", "--json")
    result = [json.loads(line) for line in files(*words).stdout.splitlines()]
    assert [each["rowIds"] for each in result if each["table"] == "todos"] == [["t2"]]


def test_rows_gained_and_lost_are_counted_for_each_client(files):
    words = ["rules", "diff", "team.json", "--from", "mine.json", "--rows", "rows.jsonl", "--list", "--json"]
    result = files(*words, "--as", "sub=alice,team=red,team=blue", "--as", "sub=bob", "--as", "sub=carol")
    red, bob = (json.loads(line) for line in result.stdout.splitlines())
    assert (red["before"], red["after"], red["addedIds"], red["removedIds"]) == (1, 2, ["t2"], [])
    assert (bob["as"], bob["addedIds"], bob["removedIds"]) == ("sub=bob", [], ["t2"])


def test_a_change_without_effect_is_reported(files):
    result = files("rules", "diff", "mine.json", "--from", "mine.json", "--rows", "rows.jsonl", "--as", "sub=bob")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no client would see a difference" in result.stderr


@pytest.mark.parametrize("claims", ["team=red", "alice", " =x", '{"sub": 1}', '{"sub"', "@nowhere.json"])
def test_invalid_claims_are_a_usage_error(files, claims):
    result = files("rules", "test", "mine.json", "--rows", "rows.jsonl", "--as", claims)
    assert result.exit_code == ExitCode.USAGE


@pytest.fixture
def requests(monkeypatch):
    """The requests of a command, which get no answer if they read settings."""
    sent = []

    def get(_remote, path):
        sent.append(f"GET {path}")
        raise UnreachableError("no gateway answers")

    def post(_remote, path, _body):
        sent.append(f"POST {path}")
        return {"applied": True}

    monkeypatch.setattr(GatewayConnection, "get", get)
    monkeypatch.setattr(GatewayConnection, "post", post)
    return sent


def test_rules_without_buckets_are_activated_by_one_request(files, requests):
    assert files("rules", "apply", "-", "--gateway", "shop", stdin=rules()).exit_code == 0
    assert requests == ["POST /admin/sync-rules/{gateway}"]


def test_rules_are_not_activated_if_the_write_scope_cannot_be_read(files, requests):
    result = files("rules", "apply", "mine.json", "--gateway", "shop")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert requests == ["GET /admin/settings/{gateway}"]


def test_rules_are_activated_from_stdin(files):
    result = files("rules", "apply", "-", "--gateway", "shop", "--url", "http://127.0.0.1:1", stdin=rules(MINE))
    assert result.exit_code == ExitCode.UNREACHABLE, result.stderr
