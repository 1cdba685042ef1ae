"""All commands choose their gateway by the same options, variables and files."""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
import pytest
import requests

from lakesync import config
from lakesync.cli.app import bypass_proxy
from lakesync.cli.connection import choose_gateway
from lakesync.cli.exit_codes import ExitCode
from lakesync.model.errors import ConfigurationError

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
USERS, PROJECT, VARIABLE, FLAG = (f"http://127.0.0.1:{port}" for port in range(1, 5))  # no server listens there


@pytest.fixture
def error_of(run, tmp_path):
    """Runs a command in a project whose files name an unreachable gateway, and returns its error message."""
    (tmp_path / "home" / "lakesync").mkdir(parents=True)
    (tmp_path / "home" / "lakesync" / "lakesync.toml").write_text(f'[remote]\nurl = "{USERS}"\ngateway = "users"\n')
    Path("rows.jsonl").write_text('{"row_id": "r"}\n')
    Path("rules.json").write_text('{"version": 1, "buckets": []}')
    Path("schema.json").write_text('{"table": "t", "columns": [{"name": "x", "type": "string"}]}')
    Path("connector.json").write_text('{"name": "jira", "type": "jira"}')

    def run_command(words: str, *more: str) -> str:
        result = run(*words.split(), *more)
        # `dlq list` can list the lake's dead letters without the gateway
        expected = ExitCode.PARTIAL if words == "dlq list" else ExitCode.UNREACHABLE
        assert result.exit_code == expected, result.output
        return result.stderr

    return run_command


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_uses_files_and_options(error_of, words):
    assert USERS in error_of(words)
    assert FLAG in error_of(words, "--url", FLAG)


def test_options_beat_variables_which_beat_the_projects_and_the_users_file(error_of, monkeypatch):
    assert USERS in error_of("status")
    Path("lakesync.toml").write_text(f'[remote]\nurl = "{PROJECT}"\ngateway = "projects"\n')
    assert PROJECT in error_of("status")
    monkeypatch.setenv("LAKESYNC_REMOTE_URL", VARIABLE)
    assert VARIABLE in error_of("status")
    assert FLAG in error_of("status", "--url", FLAG)


class _Aborts(BaseHTTPRequestHandler):
    """Closes the connection without a response."""

    def do_GET(self):
        self.close_connection = True


@pytest.mark.parametrize("words", [("status",), ("dlq", "list"), ("dlq", "retry", "away/sqlite!todos")])
def test_a_command_loads_the_settings_once(run, monkeypatch, words):
    load, loaded = config.load, []
    monkeypatch.setattr(config, "load", lambda overrides: loaded.append(overrides) or load(overrides))
    assert run(*words, "--url", "http://127.0.0.1:1", "--gateway", "shop").exit_code != 0
    assert len(loaded) == 1


def test_an_aborted_connection_is_explained_without_names_of_classes(run):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Aborts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = run("status", "--gateway", "shop", "--url", url)
        server.shutdown()
    assert result.exit_code == ExitCode.UNREACHABLE
    assert f"error: no gateway answers at {url}: Remote end closed connection without response" in result.stderr


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_changes_the_path_is_rejected(run, name):
    result = run("connectors", "unregister", name, "--yes", "--gateway", "shop", "--url", USERS)
    assert result.exit_code == ExitCode.USAGE
    assert f"nothing can be named {name!r}" in result.stderr


def test_a_numeric_gateway_in_a_token_is_an_id(run, monkeypatch):
    monkeypatch.setenv("LAKESYNC_TOKEN", jwt.encode({"sub": "ann", "gw": 5}, "k" * 32))
    assert choose_gateway(config.load(), None) == "5"
    assert run("status", "--url", USERS).exit_code == ExitCode.UNREACHABLE
    monkeypatch.setenv("LAKESYNC_TOKEN", jwt.encode({"sub": "ann", "gw": ["a"]}, "k" * 32))
    with pytest.raises(ConfigurationError):
        choose_gateway(config.load(), None)


@pytest.fixture
def without_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.setenv(variable, "")  # so that the test's end restores it
            monkeypatch.delenv(variable)


@pytest.mark.usefixtures("without_proxies")
def test_a_proxy_that_is_excluded_for_all_machines_remains_so(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "*")
    bypass_proxy()
    assert requests.utils.get_environ_proxies("https://example.org") == {}


@pytest.mark.usefixtures("without_proxies")
def test_the_proxy_of_the_operating_system_is_used_if_the_variables_name_none():
    """Python asks the operating system only if no such variable is set."""
    bypass_proxy()
    assert not urllib.request.getproxies_environment()
