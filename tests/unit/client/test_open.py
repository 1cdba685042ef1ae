"""The client that `lakesync.open` returns, over a gateway in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing, suppress

import pandas as pd
import pytest

import lakesync
from lakesync.client import HttpTransport, LocalTransport, SyncTracker, create_client, open_async
from lakesync.model.errors import ConfigurationError, SchemaError, ValidationError
from tests.unit.client.todos import TODOS

SCHEMAS = [TODOS]


def edits(client):
    return [
        (edit.delta.op, edit.delta.row_id, [cell.column for cell in edit.delta.columns]) for edit in client.pending()
    ]


def test_writes_by_every_path_are_tracked(opened, tmp_path):
    alice = opened()
    todos = alice["todos"]
    todos.insert({"title": "a", "tags": {"x": [1]}}, row_id="a")
    SyncTracker(alice).insert("todos", "b", {"title": "b"})
    todos.upsert("b", n=2)
    todos.upsert("c", done=True)
    alice.conn.execute("INSERT INTO todos (row_id, title) VALUES ('sql', 'SQL')")
    alice.conn.commit()
    pd.DataFrame({"row_id": ["p1", "p2"], "title": ["one", "two"], "n": [1.5, None]}).to_sql(
        "todos", alice.conn, if_exists="append", index=False
    )
    with closing(sqlite3.connect(tmp_path / "alice.db")) as other:
        other.execute("INSERT OR REPLACE INTO todos (row_id, title) VALUES ('b', 'replaced')")
        other.execute("UPDATE todos SET row_id = 'moved' WHERE row_id = 'c'")
        other.execute("DELETE FROM todos WHERE row_id = 'a'")
        other.commit()
    assert sorted(edits(alice)) == [
        ("INSERT", "b", ["title"]),
        ("INSERT", "moved", ["done"]),
        ("INSERT", "p1", ["title", "n"]),
        ("INSERT", "p2", ["title"]),
        ("INSERT", "sql", ["title"]),
    ]
    alice.sync()
    todos.update("b", title="again")
    with closing(sqlite3.connect(tmp_path / "alice.db")) as other:
        other.execute("INSERT OR REPLACE INTO todos (row_id, n) VALUES ('p1', 3)")
        other.execute("DELETE FROM todos WHERE row_id = 'sql'")
        other.commit()
    assert sorted(edits(alice)) == [("DELETE", "sql", []), ("UPDATE", "b", ["title"]), ("UPDATE", "p1", ["title", "n"])]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"n": "seven"}, "column n of todos takes a finite number"),
        ({"n": float("inf")}, "column n of todos takes a finite number"),
        ({"title": b"bytes"}, "column title of todos takes text"),
        ({"done": 7}, "column done of todos takes 0 or 1"),
        ({"colour": "red"}, "table 'todos' has no column 'colour'"),
        ({"tags": json.loads("[" * 101 + "]" * 101)}, "'tags' of 'todos' takes JSON: .* nested more than 100 deep"),
        ({"tags": [-(10**400)]}, "column 'tags' of 'todos' takes JSON: the integer is no finite double"),
    ],
)
def test_values_that_the_gateway_would_reject_are_rejected_when_written(opened, values, why):
    alice = opened()
    with pytest.raises(ValidationError, match=why):
        alice["todos"].insert(values)
    with pytest.raises(sqlite3.IntegrityError, match="column tags of todos takes JSON text"):
        alice.conn.execute("INSERT INTO todos (row_id, tags) VALUES ('t', 'no json')")
    with pytest.raises(sqlite3.IntegrityError, match="row_id of todos takes text"):
        alice.conn.execute("INSERT INTO todos (row_id) VALUES ('')")
    alice.conn.rollback()
    assert len(alice["todos"]) == 0


def test_wrong_arguments_are_rejected_with_advice(opened, tmp_path):
    alice = opened()
    somewhere = {"url": "https://example.com", "gateway": "g", "schemas": [TODOS]}
    for options, why in [
        ({"url": "example.com"}, "url is 'example.com': it must begin with http"),
        ({"url": "http://[::1"}, "url is .*: it is not a valid URL"),
        ({"url": "https://example.com:99999"}, "url is .*: it is not a valid URL"),
        ({"url": "https://"}, "names no host"),
        ({"url": "https://ann:secret@example.com"}, "^url has a user in it: leave that out"),
        ({"mode": "push"}, "mode is 'push', it must be one of full, pushOnly, pullOnly"),
        ({"schemas": TODOS}, "schemas is a single schema: pass a list"),
        ({"ca": str(tmp_path / "none.pem")}, "none.pem', which does not exist"),
        ({"gateway": "bad/id"}, "'bad/id' cannot be a gateway id"),
        ({"client_id": ""}, "client_id is empty"),
        ({"token": ""}, "token is empty"),
        ({"client_id": "x" * 513}, "client_id has 513 characters"),
        ({"interval": 0}, "interval is 0, it must be greater than 0"),
        ({"interval": "x"}, "interval is 'x', it must be greater than 0"),
        ({"timeout": float("nan")}, "timeout is nan, it must be greater than 0"),
    ]:
        with pytest.raises(ConfigurationError, match=why):
            lakesync.open(tmp_path / "wrong.db", **{**somewhere, **options})
    for work, why in [
        (lambda: alice["todos"].insert(title=5), "column 'title' of 'todos' takes a string, not 5"),
        (lambda: alice["todos"].insert(n=[1]), r"column 'n' of 'todos' takes a number, not \[1\]"),
        (lambda: alice["todos"].insert({"title": "a"}, row_id=7), "row_id is 7, it must be text"),
        (lambda: alice["todos"].insert(n=float("nan")), "column 'n' of 'todos' takes no NaN"),
        (lambda: alice["todos"].insert(n=2**63), "column 'n' of 'todos' takes integers of 64 bits"),
        (lambda: alice["todos"].insert(title="\ud800"), "column 'title' of 'todos' takes Unicode text"),
        (lambda: alice["todos"].insert(row_id="\ud800"), "row_id takes Unicode text"),
        (lambda: alice["todos"].insert(tags=[float("inf")]), "column 'tags' of 'todos' takes JSON: Out of range"),
        (lambda: alice["todos"].insert([{"title": "a"}]), "is not a row: pass one row as a mapping"),
        (
            lambda: alice["todos"].update("t", row_id="u"),
            "row_id is 'u' in the values and 't' in the call: a row's id cannot change",
        ),
        (lambda: alice["todos"].insert({"row_id": "t"}, row_id="u"), "and 'u' in the call: pass only one of them"),
        (lambda: alice.execute_action("desk", "open", [1]), r"params are \[1\]: give a JSON object"),
        (lambda: alice.on("onFoo", print), "event 'onFoo' is unknown: choose one of onChange"),
        (alice.drop, "drop needs the numbers"),
        (lambda: alice.query("DELETE FROM todos"), "writes to the database: pass a query"),
        (lambda: alice.query("BEGIN"), "returns no rows"),
        (lambda: alice.watch("DELETE FROM todos").next(0), "writes to the database: pass a query"),
        (lambda: alice.to_arrow("DELETE FROM todos"), "writes to the database: pass a query"),
        (lambda: alice.to_arrow("BEGIN DEFERRED"), "returns no rows"),
    ]:
        with pytest.raises(ValidationError, match=why):
            work()


def test_existing_rows_of_a_table_become_inserts(opened, tmp_path):
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        db.execute("CREATE TABLE todos (row_id TEXT PRIMARY KEY, title TEXT, mine BLOB)")
        db.execute("INSERT INTO todos VALUES ('old', 'from before', x'00')")
        db.commit()
    alice = opened()
    assert edits(alice) == [("INSERT", "old", ["title"])]
    alice.sync()
    assert alice.query("SELECT mine FROM todos") == [{"mine": b"\0"}], "a column of the app is not synchronised"


def test_an_unusable_table_raises_a_configuration_error(opened, gateway, tmp_path):
    with closing(sqlite3.connect(tmp_path / "alice.db")) as db:
        db.execute("CREATE TABLE todos (id INTEGER PRIMARY KEY, title TEXT)")
    with pytest.raises(ConfigurationError, match="table 'todos' has no column row_id"):
        opened()
    opened("bob").close()
    changed = {"table": "todos", "columns": [{"name": "title", "type": "number"}]}
    with pytest.raises(SchemaError, match="column 'title' of table 'todos' is string in this database"):
        opened("bob", schemas=[changed])
    with pytest.raises(ConfigurationError, match="belongs to client 'bob' and cannot be opened as 'eve'"):
        lakesync.open(tmp_path / "bob.db", client_id="eve", schemas=[TODOS], transport=LocalTransport(gateway))


def test_push_only_and_pull_only_clients_sync_one_way(opened):
    writer, reader = opened("writer", mode="pushOnly"), opened("reader", mode="pullOnly")
    assert (writer.status.mode, reader.status.mode) == ("pushOnly", "pullOnly")
    writer["todos"].insert(title="out")
    reader["todos"].insert({"title": "stays"}, row_id="here")
    assert writer.sync().pushed == 1
    assert reader.sync().pulled == 1
    assert len(reader.pending()) == 1
    assert writer.sync().pulled == 0


def test_a_push_only_client_cannot_compare_or_pull_its_rows(opened):
    writer = opened("writer", mode="pushOnly")
    with pytest.raises(ConfigurationError, match=r"verify pulls all rows, .*syncMode.* pushOnly"):
        writer.verify()
    with pytest.raises(ConfigurationError, match=r"resync pulls all rows, .*syncMode.* pushOnly"):
        writer.coordinator.resync()


def test_verify_finds_and_repairs_changes_made_without_triggers(opened, tmp_path):
    alice = opened()
    for name in "abc":
        alice["todos"].insert({"title": name}, row_id=name)
    alice.sync()
    assert not alice.verify()["todos"].differed
    with closing(sqlite3.connect(tmp_path / "alice.db")) as vandal:
        for (trigger,) in vandal.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            vandal.execute(f"DROP TRIGGER {trigger}")
        vandal.execute("UPDATE todos SET title = 'spoilt' WHERE row_id = 'a'")
        vandal.execute("DELETE FROM todos WHERE row_id = 'b'")
        vandal.execute("INSERT INTO todos (row_id, title) VALUES ('d', 'kept')")
        vandal.commit()
    assert alice.verify()["todos"].differed
    assert {row["row_id"]: row["title"] for row in alice["todos"]} == {"a": "a", "b": "b", "c": "c", "d": "kept"}
    assert alice.pending() == []
    alice["todos"].update("a", title="tracked again")
    assert edits(alice) == [("UPDATE", "a", ["title"])]


def test_a_closed_or_forked_client_raises_a_configuration_error(opened):
    alice = opened()
    alice["todos"].insert({"title": "kept"}, row_id="t")
    uses = [
        lambda: alice.conn,
        alice.sync,
        lambda: alice.status,
        lambda: alice["todos"].insert(title="a"),
        lambda: alice.query("SELECT 1"),
    ]
    uses += [
        lambda: alice.watch("SELECT 1"),
        lambda: alice.to_arrow("todos"),
        alice.pending,
        lambda: alice["todos"]["t"],
    ]
    if (child := os.fork()) == 0:
        refused = 0
        for use in uses[:5]:
            with suppress(BaseException):
                use()
            try:
                use()
            except ConfigurationError as error:
                refused += "opened before a fork" in str(error)
        alice.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert alice.sync().pushed == 1
    alice.close()
    for use in uses:
        with pytest.raises(ConfigurationError, match="is closed: open it again"):
            use()


def test_a_column_added_at_the_gateway_arrives_while_the_app_runs(opened, gateway):
    alice, bob = opened(), opened("bob")
    bob.sync()
    columns = [*TODOS["columns"], {"name": "due", "type": "string"}]
    gateway.register_schema({**TODOS, "columns": columns})
    with alice:
        alice["todos"].insert({"title": "before"}, row_id="t")
        alice.sync()
        alice["todos"].update("t", due="today")
        alice.sync()
    bob.sync()
    assert bob["todos"]["t"]["due"] == "today"


def test_create_client_opens_and_starts_auto_sync(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gateway = {"url": "http://127.0.0.1:9", "gatewayId": "g"}
    with create_client(name="app", client_id="me", schemas=[TODOS], gateway=gateway, auto_sync_ms=0) as client:
        client.coordinator.tracker.insert("todos", "t", {"title": "kept"})
    with create_client(
        name="app", client_id="me", schemas=[TODOS], gateway=gateway, auto_sync_ms=0, backend="memory"
    ) as memory:
        assert memory.db.backend == "memory"
        assert len(memory["todos"]) == 0
    assert (tmp_path / "app.db").exists()


def test_the_async_client_offers_the_same_methods(gateway, tmp_path):
    async def use():
        options = {"schemas": [TODOS], "transport": LocalTransport(gateway)}
        async with open_async(tmp_path / "a.db", client_id="a", **options) as db:
            assert await db["todos"].insert({"title": "x"}, row_id="t") == "t"
            done = []
            await db.on("onSyncComplete", done.append)
            assert (await db.sync()).pushed == 1
            assert not (await db.verify())["todos"].differed
            assert (db.client_id, done[0].pushed) == ("a", 1)
            async for rows in db.watch("SELECT title FROM todos"):
                assert rows == [{"title": "x"}]
                break
            await db.execute("UPDATE todos SET n = 1")
            assert [edit.delta.row_id for edit in await db.pending()] == ["t"]
            found = await db["todos"].get("t")
        with pytest.raises(ConfigurationError, match="use `async with`"):
            await db.sync()
        return found

    assert asyncio.run(use()) == {"row_id": "t", "title": "x", "done": None, "n": 1, "tags": None}


def test_a_file_cannot_be_opened_with_another_gateway(opened, tmp_path):
    alice = opened()
    alice.sync()
    alice["todos"].insert(title="for g alone")
    assert len(alice.pending()) == 1
    alice.close()
    with lakesync.open_gateway("other") as other:
        for transport in (LocalTransport(other), HttpTransport("http://127.0.0.1:9", "other")):
            with pytest.raises(ConfigurationError, match=r"synchronised with gateway 'g'\. Gateway 'other'"):
                opened(transport=transport)
        assert other.stats().last_seq == 0
    assert len(opened().pending()) == 1


@pytest.mark.parametrize("wrong", ["client", "gateway"])
def test_opening_another_clients_file_leaves_it_unchanged(opened, wrong):
    opened(sql="CREATE TABLE diary (row_id TEXT PRIMARY KEY NOT NULL, entry TEXT); INSERT INTO diary VALUES ('1', 'x')")
    diary = {"table": "diary", "columns": [{"name": "entry", "type": "string"}]}
    with lakesync.open_gateway("other") as other:
        changes = {"client": {"client_id": "eve"}, "gateway": {"transport": LocalTransport(other)}}[wrong]
        with pytest.raises(ConfigurationError, match="the database"):
            opened(schemas=[diary], **changes)
    alice = opened()
    assert list(alice) == ["todos"]
    assert alice.pending() == []


def test_a_transport_is_rejected_with_an_address_or_without_the_requested_broadcasts(gateway, tmp_path):
    transport = LocalTransport(gateway)
    with pytest.raises(ConfigurationError, match="which it replaces"):
        lakesync.open(tmp_path / "a.db", transport=transport, url="http://127.0.0.1:1", gateway="g")
    with pytest.raises(ConfigurationError, match="LocalTransport has none"):
        lakesync.open(tmp_path / "a.db", transport=transport, realtime=True)
    assert not (tmp_path / "a.db").exists()
