"""The examples of the pages: settings are accepted, commands exist, JSON is valid, and Python runs.

Other tests run the examples of README and of the pages on embedding, connectors, login providers and the command line.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import typer

import lakesync
from lakesync.adapters import DeltaQuery, SqliteAdapter
from lakesync.cli.app import app
from lakesync.client.core import ErrorResponse, FetchCheckpoint
from lakesync.client.transports.base import LocalTransport
from lakesync.config import load
from lakesync.connectors.webhook import signature_headers
from lakesync.model.action_handlers import ActionContext
from lakesync.model.errors import AdapterError, ForbiddenError
from lakesync.model.types import SyncPull, SyncPush

DOCS = Path(__file__).parents[3] / "docs"


def _examples(*languages: str) -> list[tuple[str, str]]:
    """Return `(page:line, text)` of each code block of the pages in these languages."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        for block in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if block[1] in languages:
                line = text.count("\n", 0, block.start()) + 1
                found.append((f"{page.relative_to(DOCS)}:{line}", block[2]))
    return found


def _run(page: str, start: str, names: dict[str, Any], replaced: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Run the Python example of a page that starts with a text, and return its names."""
    (text,) = (text for place, text in _examples("python") if place.startswith(f"{page}:") and text.startswith(start))
    exec(text.replace(*replaced), names)  # noqa: S102 what the page shows is what is tested
    return names


def _named(examples):
    return [pytest.param(text, id=place) for place, text in examples]


@pytest.fixture
def gateway():
    with lakesync.open_gateway("todo-app") as opened:
        yield opened


@pytest.mark.parametrize("text", _named(each for each in _examples("toml") if "[project." not in each[1]))
def test_settings_are_accepted(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"env:(\w+)", text):
        monkeypatch.setenv(name, "postgresql://user@host/database")
    for name in re.findall(r'"([\w/]+\.(?:json|pem))"', text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "lakesync.toml").write_text(text)
    load({})


def _commands() -> list[tuple[str, str]]:
    found = []
    for place, text in _examples("sh", "bash", "console", "ini"):
        joined = text.replace("\\\n", " ")
        commands = re.findall(r"(?:^|[=$/ ])(lakesync [a-z][^\n|;]*)", joined, re.MULTILINE)
        found += [(place, command.replace("%i", "8787")) for command in commands]
    return found


@pytest.mark.parametrize("command", _named(_commands()))
def test_commands_and_their_options_exist(command):
    words = shlex.split(command, comments=True)[1:]
    if "<" in words:
        words = words[: words.index("<")]
    if ">" in words:
        words = words[: words.index(">")]
    found, parent = typer.main.get_command(app), None
    while True:
        parent = found.make_context("lakesync", list(words), parent=parent)  # raises click's error for a wrong option
        if not isinstance(found, click.Group):
            return
        words = [*parent._protected_args, *parent.args]
        _, found, words = found.resolve_command(parent, words)


@pytest.mark.parametrize("text", _named(_examples("json")))
def test_json_is_valid(text):
    try:
        json.loads(text)
    except json.JSONDecodeError:
        for line in text.splitlines():  # one object a line
            json.loads(line)


@pytest.mark.parametrize("text", _named(_examples("python")))
def test_python_compiles(text):
    compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_compositions_of_adapters_are_created(tmp_path):
    with ExitStack() as closing_all:
        adapters = {name: SqliteAdapter(tmp_path / f"{name}.db") for name in ("objects", "postgres", "bigquery")}
        for each in adapters.values():
            closing_all.enter_context(closing(each))
        found = _run("adapters.md", "from lakesync.adapters import CompositeAdapter", dict(adapters))
        assert not found["adapter"].query_deltas_since(DeltaQuery()).deltas


def test_the_action_handler_executes_actions(gateway):
    found: dict[str, Any] = {
        "gateway": gateway,
        "desk_is_closed": lambda: found["is_closed"],
        "open_ticket": lambda title, key: f"{key}: {title}",
        "is_closed": False,
    }
    _run("actions.md", "import msgspec", found)
    action = SimpleNamespace(params='{"title": "Broken"}', action_id="a1")
    desk, support = found["Desk"](), ActionContext("g", {"teams": ["support"]}, 1)
    assert desk.execute_action(action, support) == {"ticket": "a1: Broken"}
    with pytest.raises(ForbiddenError):
        desk.execute_action(action, ActionContext("g", {}, 1))
    found["is_closed"] = True
    with pytest.raises(AdapterError):
        desk.execute_action(action, support)


def test_the_signature_of_an_alert_is_verified():
    found = _run("dagster.md", "import hashlib", {})
    headers = signature_headers("secret", time.time(), b"{}")
    assert found["is_ours"]("secret", headers, b"{}")
    assert not found["is_ours"]("secret", headers, b"[]")


def test_the_examples_of_the_client_run(gateway, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    open_client = lakesync.open

    def open_locally(path, *, url, gateway: str, token, schemas):
        return open_client(path, transport=transport, schemas=schemas)

    transport = LocalTransport(gateway)
    monkeypatch.setattr(lakesync, "open", open_locally)
    found = _run("client.md", "import lakesync\n", {"fetch_token": lambda: "token"})
    _run("login.md", "db = lakesync.open", found)
    with found["db"] as db:
        assert [row["title"] for row in db["todos"]] == ["Buy oat milk"]
        for number in range(7):
            db["todos"].insert(title=f"todo {number}")
        numbers = [edit.number for edit in db.pending()]
        _run("client.md", "for edit in db.pending()", found, ("drop(7)", f"drop({numbers[-1]})"))
        assert [edit.number for edit in db.pending()] == numbers[:-1]
    assert "todo 6" in capsys.readouterr().out


def test_the_example_of_the_clients_core_pushes_and_pulls(gateway):
    claims = {"sub": "alice"}

    def send(request):
        sent.append(type(request))
        if isinstance(request, FetchCheckpoint):
            return ErrorResponse("NOT_FOUND", "there is no checkpoint")
        handle = gateway.handle_push if isinstance(request, SyncPush) else gateway.handle_pull
        return handle(request, claims)

    sent = []
    _run("client-core.md", "from lakesync.client.core", {"send": send})
    assert set(sent) == {SyncPush, FetchCheckpoint, SyncPull}


def test_the_provider_for_tests_makes_tokens():
    found = _run("login.md", "from lakesync.testing", {})
    assert found["token"].count(".") == 2
