"""Clients of an app that writes all the time: it has written again before each push is answered."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from lakesync.client import Client, open_client
from tests.integration.gateway_support import Served, delta, sign, until

TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}


@pytest.fixture
def options(served: Served, tmp_path) -> dict[str, Any]:
    """The arguments to open alice's file."""
    gateway = served.client().gateway
    access = {"url": served.url, "gateway": gateway, "token": sign("alice", gateway)}
    return {"path": tmp_path / "alice.db", "schemas": [TODOS], **access}


def write_at_each_push(client: Client) -> None:
    """Insert a row by another connection while a push of this client is sent."""
    transport: Any = client.transport
    push, path = transport.push, client.coordinator.replica.path

    def push_and_write(request):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("INSERT INTO todos (row_id, title) VALUES (lower(hex(randomblob(8))), 'more')")
        return push(request)

    transport.push = push_and_write


def test_a_synchronisation_ends_with_the_writes_from_before_it(served: Served, options) -> None:
    with open_client(**options) as alice:
        alice.sync()
        write_at_each_push(alice)
        served.client("bob", options["gateway"]).push(delta("b1", {"title": "bob's"}, client="bob"))
        alice["todos"].insert({"title": "mine"}, row_id="a1")
        alice.sync()
        assert alice["todos"].get("b1")
        assert [edit.status for edit in alice.pending()] == ["waiting"]
        assert alice.pending()[0].delta.row_id != "a1"


@pytest.mark.parametrize("realtime", [False, True])
def test_auto_sync_notifies_the_app_of_changes(served: Served, options, realtime: bool) -> None:
    changes: list[int] = []
    with open_client(**options, auto_sync=True, realtime=realtime) as alice:
        until(lambda: alice.status.last_sync and alice.status.live == realtime, "the first sync")
        alice.on("onChange", lambda pulled, _tables: changes.append(pulled))
        write_at_each_push(alice)
        alice["todos"].insert({"title": "mine"}, row_id="a1")
        served.client("bob", options["gateway"]).push(delta("b1", {"title": "bob's"}, client="bob"))
        until(lambda: changes, "a change of bob's")
        assert alice["todos"].get("b1")
