"""Which gateway a command talks to is said in the same ways to all of them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lakesync.cli.exit_codes import ExitCode

COMMANDS = [
    "status",
    "clients",
    "flush",
    "push rows.jsonl --table t --client ann",
    "pull --client ann",
    "explain t r --as sub=ann",
    "rules show",
    "rules apply rules.json",
    "rules test --as sub=ann",
    "rules diff rules.json --as sub=ann",
    "schema list",
    "schema apply schema.json",
    "checkpoint show",
    "checkpoint fetch frames.bin --client ann",
    "connectors list",
    "connectors types",
    "connectors register connector.json",
    "connectors unregister jira --yes",
    "dlq list",
]
USERS, PROJECT, VARIABLE, FLAG = (f"http://127.0.0.1:{port}" for port in range(1, 5))  # nobody answers there


@pytest.fixture
def asked(run, tmp_path):
    """Runs a command in a project whose files name a gateway; what it says when that cannot be reached."""
    (tmp_path / "home" / "lakesync").mkdir(parents=True)
    (tmp_path / "home" / "lakesync" / "lakesync.toml").write_text(f'[remote]\nurl = "{USERS}"\ngateway = "users"\n')
    Path("rows.jsonl").write_text('{"row_id": "r"}\n')
    Path("rules.json").write_text('{"version": 1, "buckets": []}')
    Path("schema.json").write_text('{"table": "t", "columns": [{"name": "x", "type": "string"}]}')
    Path("connector.json").write_text('{"name": "jira", "type": "jira"}')

    def ask(words: str, *more: str) -> str:
        told = run(*words.split(), *more)
        expected = ExitCode.PARTIAL if words == "dlq list" else ExitCode.UNREACHABLE  # the lake has a part of it
        assert told.exit_code == expected, told.output
        return told.stderr

    return ask


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_uses_files_and_options(asked, words):
    assert USERS in asked(words)
    assert FLAG in asked(words, "--url", FLAG)


def test_options_beat_variables_which_beat_the_projects_and_the_users_file(asked, monkeypatch):
    assert USERS in asked("status")
    Path("lakesync.toml").write_text(f'[remote]\nurl = "{PROJECT}"\ngateway = "projects"\n')
    assert PROJECT in asked("status")
    monkeypatch.setenv("LAKESYNC_REMOTE_URL", VARIABLE)
    assert VARIABLE in asked("status")
    assert FLAG in asked("status", "--url", FLAG)


class _Aborts(BaseHTTPRequestHandler):
    """Closes the connection without a response."""

    def do_GET(self):
        self.close_connection = True


def test_an_aborted_connection_is_explained_without_names_of_classes(run):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Aborts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = run("status", "--gateway", "shop", "--url", url)
        server.shutdown()
    assert result.exit_code == ExitCode.UNREACHABLE
    assert f"error: no gateway answers at {url}: Remote end closed connection without response" in result.stderr
