"""The Python client against a real gateway, over HTTP and over WebSocket."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from lakesync.client import DbError, HttpTransport, UnreachableError
from lakesync.client.core import Changes, CoreLimits
from lakesync.client.sync import prefetch
from lakesync.client.transports import tokens as client_tokens
from lakesync.client.transports.http import error_from_response
from lakesync.model.action_handlers import ActionDescriptor
from lakesync.model.errors import AuthError, ClockDriftError, ForbiddenError, NotFoundError, SchemaError
from tests.integration.client.conftest import TODOS, Open
from tests.integration.gateway.test_checkpoint import publish, rows
from tests.integration.gateway_support import Process, Served, delta, sign, until, wall_ms


def test_two_apps_converge_and_keep_each_others_columns(opened: Open) -> None:
    alice, bob = opened("alice"), opened("bob")
    assert alice.client_id == "alice"
    row_id = alice["todos"].insert(title="Milk", done=False)
    assert alice.sync().pushed == 1
    bob.sync()
    bob["todos"].update(row_id, done=True)
    with alice.transaction() as conn:
        conn.execute("UPDATE todos SET title = 'Oat milk' WHERE row_id = ?", (row_id,))
    bob.sync()
    alice.sync()
    bob.sync()
    assert (
        list(alice["todos"]) == list(bob["todos"]) == [{"row_id": row_id, "title": "Oat milk", "done": True, "n": None}]
    )
    assert {version.client_id for version in alice.history("todos", row_id)} == {"bob", "alice"}
    assert alice.pending() == []
    status = alice.status
    assert status.connected
    assert status.pending == 0
    assert status.lag is not None
    assert abs(status.clock_offset or 0) <= 2


def test_a_rejected_edit_is_refused_and_the_others_continue(served: Served, opened: Open) -> None:
    admin = served.client(gateway=opened.gateway).admin()  # type: ignore[attr-defined]
    narrow = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}
    admin.call("POST", "/admin/schema/{gw}", json=narrow)
    alice = opened("alice")
    rejected: list[Any] = []
    alice.on("onRejected", rejected.extend)
    alice["todos"].insert({"title": "fits"}, row_id="good")
    alice["todos"].insert({"title": "does not", "n": 7}, row_id="bad")
    report = alice.sync()
    assert report.pushed == 1
    assert [(edit.delta.row_id, edit.code) for edit in report.refused] == [("bad", "SCHEMA_ERROR")]
    assert rejected == list(report.refused)
    assert alice["todos"]["bad"]["n"] == 7, "the app still sees it"
    assert alice.status.refused == 1
    admin.call("POST", "/admin/schema/{gw}", json=TODOS)
    alice.retry()
    assert alice.sync().pushed == 1
    assert alice.pending() == []


def test_dropping_a_refused_edit_restores_the_row(served: Served, opened: Open) -> None:
    admin = served.client(gateway=opened.gateway).admin()  # type: ignore[attr-defined]
    admin.call("POST", "/admin/schema/{gw}", json={"table": "todos", "columns": [{"name": "title", "type": "string"}]})
    alice = opened("alice")
    alice["todos"].insert({"title": "as it was"}, row_id="t")
    alice.sync()
    alice["todos"].update("t", title="as wanted", n=1)
    (refused,) = alice.sync().refused
    alice.drop(refused.number)
    assert alice["todos"]["t"] == {"row_id": "t", "title": "as it was", "done": None, "n": None}


def test_tables_get_the_columns_of_the_gateways_schema(served: Served, opened: Open) -> None:
    admin = served.client(gateway=opened.gateway).admin()  # type: ignore[attr-defined]
    wide = {**TODOS, "columns": [*TODOS["columns"], {"name": "tags", "type": "json"}]}
    admin.call("POST", "/admin/schema/{gw}", json=wide)
    bob = opened("bob", schemas=[wide])
    bob["todos"].insert({"title": "new", "tags": ["a"]}, row_id="t")
    bob.sync()
    alice = opened("alice")
    assert "tags" not in alice["todos"].schema.types
    alice.sync()
    assert alice["todos"]["t"]["tags"] == ["a"]


def test_a_first_sync_loads_the_checkpoint_and_continues_from_it(served: Served, opened: Open, tmp_path) -> None:
    writer = served.client("writer", opened.gateway)  # type: ignore[attr-defined]
    first = [
        delta(f"t{place}", {"title": f"row {place}", "done": place % 2 == 0}, client="writer") for place in range(5)
    ]
    odd = delta("t5", {"title": "row 5", "colour": "unknown here"}, client="writer")
    writer.push(*first, odd)
    publish(served, writer, tmp_path, [rows(*first[:3]), rows(*first[3:], odd)])
    writer.push(delta("t9", {"title": "later"}, client="writer"))
    alice = opened("alice")
    progress: list[Any] = []
    changes: list[Any] = []
    alice.on("onProgress", progress.append)
    alice.on("onChange", lambda count, tables: changes.append((count, tables)))
    alice["todos"].insert({"n": 1}, row_id="t2")
    alice.sync()
    assert [each.rows for each in progress] == [3, 6]
    assert progress[-1].bytes > 0
    assert {row["row_id"]: row["title"] for row in alice["todos"]} == {
        **{f"t{place}": f"row {place}" for place in range(6)},
        "t9": "later",
    }
    assert alice["todos"]["t2"] == {"row_id": "t2", "title": "row 2", "done": True, "n": 1}
    assert changes[0][1] == {"todos"}
    assert not list(tmp_path.glob("*lakesync-first*"))


def test_a_client_without_a_checkpoint_reports_its_pages(
    served: Served, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "MAX_PAGES", 1)  # otherwise, pages that are written together are reported as one
    writer = served.client("writer", opened.gateway)  # type: ignore[attr-defined]
    writer.push(*(delta(f"t{place}", {"title": f"row {place}"}, client="writer") for place in range(5)))
    alice = opened("alice", limits=CoreLimits(pull_deltas=2))
    progress: list[Any] = []
    alice.on("onProgress", progress.append)
    alice.sync()
    assert [(each.rows, each.bytes) for each in progress] == [(2, 0), (4, 0)]
    alice.sync()
    assert len(progress) == 2
    alice.verify()
    assert [each.rows for each in progress[2:]] == [1, 2, 3, 4], "a page has a DELETE and an INSERT of a row"


def test_a_rejected_token_is_renewed(served: Served, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = opened.gateway  # type: ignore[attr-defined]
    tokens = [sign("alice", gateway, secret="not the server's secret, but as long"), sign("alice", gateway)]
    alice = opened("alice", token=lambda: tokens.pop(0), client_id="alice")
    alice["todos"].insert(title="x")
    assert alice.sync().pushed == 1
    assert tokens == []
    about_to_end = sign("alice", gateway, seconds=60)
    fresh = [about_to_end, sign("alice", gateway), sign("alice", gateway)]
    alice.set_token(lambda: fresh.pop(0))
    alice.sync()
    assert len(fresh) == 2
    monkeypatch.setattr(client_tokens, "time", SimpleNamespace(time=lambda: time.time() + 40))
    alice.sync()
    assert len(fresh) == 1, "a token that is about to expire is replaced before a rejection"


def test_a_token_functions_sub_becomes_the_client_id_of_a_new_file(opened: Open) -> None:
    gateway = opened.gateway  # type: ignore[attr-defined]
    asked: list[str] = []

    def fetch() -> str:
        asked.append("alice")
        return sign("alice", gateway)

    alice = opened("phone", token=fetch)
    assert alice.client_id == "alice"
    alice["todos"].insert(title="x")
    assert alice.sync().pushed == 1
    assert asked == ["alice"]
    alice.close()

    def away() -> str:
        raise ConnectionError("offline")

    assert opened("phone", token=away).client_id == "alice"
    with pytest.raises(UnreachableError, match="offline"):
        opened("nobody's yet", token=away)


def test_a_token_function_of_another_user_sends_nothing_from_a_file(opened: Open) -> None:
    opened("phone", token=sign("alice", opened.gateway)).close()  # type: ignore[attr-defined]
    phone = opened("phone", token=lambda: sign("bob", opened.gateway))  # type: ignore[attr-defined]
    phone["todos"].insert(title="alice's")
    with pytest.raises(ForbiddenError, match="clientId is 'alice' but the token's sub is 'bob'"):
        phone.sync()
    assert [edit.status for edit in phone.pending()] == ["waiting"]


def test_failures_are_reported_and_nothing_is_lost(served: Served, opened: Open) -> None:
    gateway = opened.gateway  # type: ignore[attr-defined]
    alice = opened("alice", token="no token at all", client_id="alice")
    alice["todos"].insert(title="x")
    with pytest.raises(AuthError):
        alice.sync()
    assert not alice.status.connected
    assert isinstance(alice.status.last_error, AuthError)
    assert not alice.status.last_error.retryable
    alice.transport = alice.coordinator.transport
    alice.set_token(sign("alice", gateway))
    assert alice.sync().pushed == 1
    away = opened("away", url="http://127.0.0.1:9", client_id="away")
    away["todos"].insert(title="offline")
    with pytest.raises(UnreachableError) as error:
        away.sync()
    assert error.value.retryable
    assert away.status.pending == 1


def test_a_clock_that_is_ahead_is_measured(served: Served, opened: Open) -> None:
    alice = opened("alice")
    replica = alice.coordinator.replica
    replica._uses_write_times = False
    replica._wall = lambda: wall_ms() + 60_000
    replica._core = replica._create_core()
    alice["todos"].insert(title="from the future")
    (refused,) = alice.sync().refused
    assert refused.code == ClockDriftError.code
    assert "this machine's clock is about" in refused.message
    replica._wall = wall_ms
    replica._core = replica._create_core()
    assert alice.sync().pushed == 1, "it gets a new stamp once the clock is right"


def test_resync_required_restarts_the_client_and_keeps_its_edits(served: Served, opened: Open) -> None:
    alice, bob = opened("alice"), opened("bob")
    bob["todos"].insert({"title": "theirs"}, row_id="b")
    bob.sync()
    alice.sync()
    alice["todos"].update("b", n=3)
    replica = alice.coordinator.replica
    replica.record()
    ahead = replace(replica.store.position(), cursor=replica.store.position().cursor + (1 << 40))
    replica.step(lambda _: replica.store.commit(Changes(position=ahead)))
    replica._core = replica._create_core()
    alice.sync()
    assert alice["todos"]["b"] == {"row_id": "b", "title": "theirs", "done": None, "n": 3}
    bob.sync()
    assert bob["todos"]["b"]["n"] == 3


@pytest.mark.parametrize("realtime", [False, True])
def test_a_restored_file_gets_its_clients_later_writes(opened: Open, tmp_path, realtime: bool) -> None:
    alice = opened("alice")
    alice["todos"].insert({"title": "old", "n": 1}, row_id="old")
    alice.sync()
    alice.conn.execute("VACUUM INTO ?", (str(tmp_path / "backup"),))
    alice["todos"].update("old", n=2)
    alice["todos"].insert({"title": "new"}, row_id="new")
    alice.sync()
    expected = list(alice["todos"])
    alice.close()
    for path in tmp_path.glob("alice.db*"):
        path.unlink()
    (tmp_path / "backup").rename(tmp_path / "alice.db")
    alice = opened("alice", realtime=realtime, auto_sync=realtime)
    if not realtime:
        alice.sync()
    until(lambda: list(alice["todos"]) == expected, "what was lost")


class Desk:
    supported_actions = (ActionDescriptor("open", "Open a ticket"),)

    def execute_action(self, action, _context):
        if b"bad" in bytes(action.params):
            raise SchemaError("no such ticket")
        return {"ticket": 42}


def test_an_action_is_executed_once_and_its_result_is_stored(served: Served, opened: Open) -> None:
    alice = opened("alice")
    served.engine.gateway(opened.gateway).register_action_handler("desk", Desk())  # type: ignore[attr-defined]
    ended: list[Any] = []
    alice.on("onActionComplete", lambda action_id, queued: ended.append((action_id, queued.status)))
    good = alice.execute_action("desk", "open", {"title": "x"})
    bad = alice.execute_action("desk", "open", {"title": "bad"})
    assert alice.action(good).status == "waiting"
    alice.sync()
    assert alice.action(good).data == {"ticket": 42}
    assert (alice.action(bad).status, alice.action(bad).code) == ("failed", "SCHEMA_ERROR")
    assert sorted(ended) == sorted([(good, "done"), (bad, "failed")])
    assert [each.action_type for each in alice.coordinator.describe_actions().connectors["desk"]] == ["open"]
    alice.coordinator.actions.drop(bad)
    assert [queued.action_id for queued in alice.coordinator.actions.all()] == [good]


def test_connector_types_are_listed(served: Served, opened: Open) -> None:
    types = {each.type: each for each in opened("alice").list_connector_types()}
    assert types == {each.type: each for each in served.engine.connectors.descriptors()}
    assert "apiToken" in types["jira"].secrets


def test_a_second_client_of_a_database_cannot_synchronise(opened: Open) -> None:
    first = opened("alice")
    second = opened("alice")
    first.sync()
    second["todos"].insert(title="by the second")
    with pytest.raises(DbError, match=r"another client is synchronising 'alice\.db'"):
        second.sync()
    assert first.sync().pushed == 1


def test_an_address_that_is_not_a_gateways_is_named_in_the_error(served: Served) -> None:
    transport = HttpTransport(served.url + "/nowhere", "gw", sign())
    with pytest.raises(NotFoundError, match="GET /nowhere/sync/gw/actions"):
        transport.describe_actions()
    assert transport.clock_offset is not None
    transport.close()


def test_an_error_names_its_line_in_the_gateways_log(spawn: Callable[..., Process]) -> None:
    gateway = spawn()
    transport = HttpTransport(gateway.url, "gw", sign(gw="another"))
    with pytest.raises(ForbiddenError) as raised:
        transport.describe_actions()
    transport.close()
    request_id = raised.value.request_id
    logged = until(
        lambda: [line for line in gateway.lines() if line.get("request_id") == request_id], "the request in the log"
    )
    assert [(line["route"], line["code"]) for line in logged] == [("/sync/{gateway}/actions", "FORBIDDEN")]


def test_a_proxy_without_a_gateway_behind_it_is_named() -> None:
    error = error_from_response(502, b"<html><h1>502 Bad Gateway</h1></html>", {"Retry-After": "3"})
    assert isinstance(error, UnreachableError)
    assert str(error) == "the response is 502 from a proxy: no gateway answers behind it; retry later"
    assert error.retry_after == 3
