"""Rules checked, tried and compared without a gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakesync.cli.exit_codes import ExitCode


def rules(*buckets):
    return json.dumps({"version": 1, "buckets": buckets})


MINE = {"name": "mine", "tables": ["todos"], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}
TEAM = {"name": "team", "tables": ["todos"], "filters": [{"column": "team", "op": "in", "value": "jwt:team"}]}
ROWS = [
    {"table": "todos", "rowId": "t1", "values": {"owner": "alice", "team": "red"}},
    {"table": "todos", "rowId": "t2", "values": {"owner": "bob", "team": "red"}},
    {"op": "INSERT", "table": "notes", "rowId": "n1", "columns": [{"column": "owner", "value": "bob"}]},
    {"op": "DELETE", "table": "notes", "rowId": "n2", "columns": []},
]


@pytest.fixture
def files(run):
    Path("mine.json").write_text(rules(MINE))
    Path("team.json").write_text(rules(TEAM))
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    return run


def test_wrong_rules_are_invalid_and_named(files):
    Path("wrong.json").write_text(rules(MINE, MINE))
    told = files("rules", "validate", "wrong.json")
    assert (told.exit_code, told.stdout) == (ExitCode.INVALID, "")
    assert "wrong.json: buckets[1] has the name 'mine'" in told.stderr


def test_rules_must_name_columns_that_there_are(files):
    Path("todos.json").write_text(json.dumps({"table": "todos", "columns": [{"name": "team", "type": "string"}]}))
    assert files("rules", "validate", "team.json", "--schemas", "todos.json").exit_code == 0
    told = files("rules", "validate", "mine.json", "--schemas", "todos.json")
    assert told.exit_code == ExitCode.INVALID
    assert "'owner', which table 'todos' does not have" in told.stderr


def test_what_a_user_would_see(files):
    words = ("rules", "test", "mine.json", "--rows", "rows.jsonl", "--as", "sub=alice", "--as", '{"sub": "bob"}')
    told = [json.loads(line) for line in files(*words, "--list", "--json").stdout.splitlines()]
    assert [(each["as"], each["table"], each["rows"], each["rowIds"]) for each in told] == [
        ("sub=alice", "notes", 1, []),
        ("sub=alice", "todos", 2, ["t1"]),
        ('{"sub": "bob"}', "notes", 1, []),
        ('{"sub": "bob"}', "todos", 2, ["t2"]),
    ]


def test_what_a_change_adds_and_removes_for_whom(files):
    words = ["rules", "diff", "team.json", "--from", "mine.json", "--rows", "rows.jsonl", "--list", "--json"]
    told = files(*words, "--as", "sub=alice,team=red,team=blue", "--as", "sub=bob", "--as", "sub=carol")
    red, bob = (json.loads(line) for line in told.stdout.splitlines())
    assert (red["before"], red["after"], red["addedIds"], red["removedIds"]) == (1, 2, ["t2"], [])
    assert (bob["as"], bob["addedIds"], bob["removedIds"]) == ("sub=bob", [], ["t2"])


def test_a_change_that_nobody_sees_says_so(files):
    told = files("rules", "diff", "mine.json", "--from", "mine.json", "--rows", "rows.jsonl", "--as", "sub=bob")
    assert (told.exit_code, told.stdout) == (0, "")
    assert "nobody would see anything else" in told.stderr


@pytest.mark.parametrize("claims", ["team=red", "alice", '{"sub": 1}', '{"sub"', "@nowhere.json"])
def test_claims_of_another_form_are_usage(files, claims):
    told = files("rules", "test", "mine.json", "--rows", "rows.jsonl", "--as", claims)
    assert told.exit_code == ExitCode.USAGE
