"""Each class of errors has an exit code and a form of message."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import typer

from lakesync.cli.commands import load_settings
from lakesync.cli.dagster_client import DagsterUnreachableError
from lakesync.cli.exit_codes import CODES, REMEDIES, ExitCode, code_of
from lakesync.cli.local.staging import _owner
from lakesync.client.errors import UnreachableError
from lakesync.model import errors as exceptions
from lakesync.model.errors import StagingUnavailableError


def tree(kind=exceptions.LakeSyncError):
    yield kind
    for each in kind.__subclasses__():
        yield from tree(each)


KINDS = {kind.__name__: kind for kind in tree() if kind.__module__.startswith("lakesync.")}


def test_the_tables_name_existing_classes():
    assert set(CODES) <= {*KINDS, "PartialError"}
    assert set(REMEDIES) <= set(CODES)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (exceptions.ConfigurationError, ExitCode.USAGE),
        (UnreachableError, ExitCode.UNREACHABLE),
        (DagsterUnreachableError, ExitCode.UNREACHABLE),
        (exceptions.StagingUnavailableError, ExitCode.UNREACHABLE),
        (exceptions.AuthError, ExitCode.AUTH),
        (exceptions.ForbiddenError, ExitCode.AUTH),
        (exceptions.SchemaMismatchError, ExitCode.INVALID),
        (exceptions.DuplicateError, ExitCode.INVALID),
        (exceptions.NotFoundError, ExitCode.FAILED),
        (exceptions.CommitUnknownError, ExitCode.FAILED),
    ],
)
def test_each_error_class_has_its_exit_code(kind, code):
    assert code_of(kind) is code


def test_an_unexpected_exception_has_no_exit_code():
    assert code_of(KeyError) is None


def test_an_error_is_printed_with_a_remedy_on_stderr(run):
    result = run("status", "--gateway", "shop", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (ExitCode.UNREACHABLE, "")
    assert "error: no gateway answers at http://127.0.0.1:1: " in result.stderr
    assert "  try: start a gateway" in result.stderr
    assert "Traceback" not in result.stderr


def test_with_json_an_error_is_one_object(run):
    result = run("clients", "--gateway", "shop", "--url", "http://127.0.0.1:1", "--json")
    assert result.stdout == ""
    error = json.loads(result.stderr)
    assert (error["code"], error["exitCode"]) == ("UNREACHABLE", 3)
    assert "http://127.0.0.1:1" in error["error"]


def test_without_a_gateway_id_the_error_names_the_option(run):
    result = run("status")
    assert result.exit_code == ExitCode.USAGE
    assert "--gateway" in result.stderr


def test_a_missing_package_of_the_lake_names_its_extra(run, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("lakesync.analysis.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    result = run("row", "history", "todos", "t1")
    assert result.exit_code == ExitCode.FAILED
    assert "pip install 'lakesync[query]'" in result.stderr
    result = run("row", "history", "todos", "t1", "--json")
    assert json.loads(result.stderr)["code"] == "PACKAGE_MISSING"


def test_commands_of_the_platform_name_its_extra(run, monkeypatch):
    for name in ("lakesync.cli.up.stack",):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    needs = {
        "up": "pip install 'lakesync[platform]'",
        "gateway": "pip install 'lakesync[server]'",
        "demo": "scripts/demo",
    }
    for command, remedy in needs.items():
        result = run(command)
        assert result.exit_code == ExitCode.FAILED
        assert remedy in result.stderr


def test_an_erasure_creates_no_store(run, tmp_path):
    result = run("erase", "--gateway", "shop", "--table", "t", "--row", "r", "--yes")
    assert result.exit_code == ExitCode.USAGE
    assert "there is no staging store in" in result.stderr
    assert not (tmp_path / "project" / "lakesync-data").exists()


def test_the_owner_of_a_store_is_found_by_up_json(run):
    Path("lakesync-data").mkdir()
    Path("lakesync-data/up.json").write_text('{"gateway": {"url": "http://127.0.0.1:4711"}}')
    Path("lakesync-data/secrets.json").write_text('{"service_token": "s"}')
    assert _owner(load_settings(), StagingUnavailableError("owned")) == ("http://127.0.0.1:4711", "s")


def test_claims_require_a_token_that_is_signed_here(run, monkeypatch):
    words = ("pull", "--gateway", "shop", "--url", "http://127.0.0.1:1", "--client", "bob", "--claim")
    assert "NAME=VALUE" in run(*words, "team").stderr
    assert "there is no secret to sign with" in run(*words, "team=red").stderr
    monkeypatch.setenv("LAKESYNC_TOKEN", "a.b.c")
    assert "a token is given, which has its own claims" in run(*words, "team=red").stderr


def test_a_missing_part_is_reported_in_json_too(run):
    words = ("--gateway", "shop", "--url", "http://127.0.0.1:1")
    result = run("dlq", "list", *words, "--json")
    assert result.exit_code == ExitCode.PARTIAL
    said = json.loads(result.stderr)
    assert (said["code"], said["exitCode"]) == ("PARTIAL", 6)
    assert "no gateway answers" in said["error"]
    assert run("dlq", "list", *words).stderr.startswith("incomplete: no gateway answers")
    assert run("dlq", "show", "an id", *words).exit_code == ExitCode.UNREACHABLE


def test_without_a_terminal_a_confirmation_requires_yes(run):
    result = run("connectors", "unregister", "jira", "--gateway", "shop", stdin="y\n")
    assert result.exit_code == ExitCode.USAGE
    assert "--yes" in result.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("status", "--nosuch"), "No such option: --nosuch"),
        (("statsu",), "No such command 'statsu'"),
        (("push", "absent.csv", "--gateway", "shop"), "absent.csv cannot be read"),
        (("pull", "--gateway", "shop", "--limit", "x"), "--limit"),
        (("erase", "--gateway", "shop", "--table", "t"), "give --table and --row"),
        (("dlq", "drop"), "give one ID or --all"),
        (("dlq", "retry", "copies/main!todos", "--all"), "give one ID or --all"),
    ],
)
def test_a_usage_error_is_reported_in_json_too(run, words, why):
    result = run(*words, "--json")
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    said = json.loads(result.stderr)
    assert (said["code"], said["exitCode"]) == ("USAGE", 2)
    assert why in said["error"]


def test_usage_errors_of_older_typers_are_recognised(run, monkeypatch):
    monkeypatch.delattr(typer, "TyperException")
    assert run("statsu", "--json").exit_code == run("statsu").exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("status", "--gateway", "bad/id"), "'bad/id' cannot be a gateway id"),
        (("erase", "--gateway", "bad/id", "--table", "t", "--row", "r", "--yes"), "'bad/id' cannot be a gateway id"),
        (("erase", "--table", "t", "--row", "r", "--yes"), "no gateway is chosen"),
        (("token", "create", "--gateway", "bad/id", "--client", "ann"), "'bad/id' cannot be a gateway id"),
        (("status", "--gateway", "shop", "--url", "ftp://here"), "must begin with http:// or https://"),
        (("tail", "--gateway", "shop", "--url", "http://[::1"), "it is not a valid URL"),
        (("tail", "--gateway", "shop", "--url", "http://127.0.0.1:99999"), "it is not a valid URL"),
        (("status", "--gateway", "shop", "--url", "http://"), "it names no host"),
        (("status", "--gateway", "shop", "--url", "http://ann:sesame@here"), "has a user in it"),
    ],
)
def test_gateway_id_and_url_are_validated_before_a_request(run, words, why):
    result = run(*words)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert why in result.stderr
    assert "sesame" not in result.stderr


@pytest.mark.parametrize("command", ["status", "pull", "tail", "doctor"])
def test_a_password_in_a_url_is_not_printed(run, monkeypatch, command):
    monkeypatch.setenv("LAKESYNC_REMOTE_GATEWAY", "shop")
    monkeypatch.setenv("LAKESYNC_REMOTE_URL", "http://ann:sesame@127.0.0.1:1")
    result = run(command)
    assert result.exit_code != 0
    assert "has a user in it" in result.output
    assert "sesame" not in result.output


@pytest.mark.parametrize("token", ["sesame\nsesame", "sesame sesame", "sesame\x01", "sesame\u00fc", b"sesame\xff"])
@pytest.mark.parametrize("command", ["status", "pull", "tail"])
def test_an_invalid_token_is_not_sent_and_not_printed(run, monkeypatch, command, token):
    where = ("--gateway", "shop", "--url", "http://127.0.0.1:1")
    Path("token").write_bytes(token if isinstance(token, bytes) else token.encode())
    result = [run(command, *where, "--token-file", "token")]
    if isinstance(token, str):
        monkeypatch.setenv("LAKESYNC_TOKEN", token)
        result.append(run(command, *where))
    for each in result:
        assert each.exit_code == ExitCode.AUTH
        assert "outside of ASCII: remove it" in each.stderr
        assert "sesame" not in each.output


class _Elsewhere(BaseHTTPRequestHandler):
    """A server that answers every request with JSON but is not a gateway."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "11")
        self.end_headers()
        self.wfile.write(b'{"ok":true}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture
def elsewhere():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "words", ["status", "clients", "rules show", "schema list", "checkpoint show", "dlq list --kind work"]
)
def test_a_server_that_is_not_a_gateway_is_unreachable(run, elsewhere, words):
    result = run(*words.split(), "--gateway", "shop", "--url", elsewhere)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "check that it is a gateway of this version" in result.stderr


def test_a_destinations_dead_letter_cannot_be_dropped(run):
    result = run("dlq", "drop", "copies/main!todos", "--yes")
    assert result.exit_code == ExitCode.INVALID
    assert "'copies/main!todos' is a destination's dead letter, which cannot be dropped" in result.stderr
