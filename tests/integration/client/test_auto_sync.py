"""Auto-sync and custom queues against a real gateway."""

from __future__ import annotations

import time

import pytest

from lakesync.client import MemoryQueue
from lakesync.model.delta import extract_delta
from lakesync.model.errors import ForbiddenError
from tests.integration.client.conftest import Open
from tests.integration.gateway_support import DEADLINE, sign, until


@pytest.mark.parametrize("auto_sync", [None, False])
def test_realtime_starts_auto_sync_unless_the_app_does_so_later(opened: Open, auto_sync: bool | None) -> None:
    alice = opened("alice", realtime=True, auto_sync=auto_sync)
    if auto_sync is False:
        assert alice.coordinator._auto_sync._thread is None
        alice.coordinator.start_auto_sync()
    until(lambda: alice.status.live, "the WebSocket")


@pytest.mark.parametrize("realtime", [False, True])
def test_auto_sync_pushes_from_a_custom_queue(opened: Open, realtime: bool) -> None:
    queue = MemoryQueue()
    alice = opened("alice", realtime=realtime, auto_sync=True, interval=0.2, heartbeat=0.2, queue=queue)
    alice["todos"].insert(title="hers")
    entered = extract_delta(None, {"title": "x"}, table="todos", row_id="x", client_id="alice", hlc=1 << 50)
    assert entered is not None
    queue.push(entered)
    bob = opened("bob")
    deadline = time.monotonic() + 60
    while {row["title"] for row in bob["todos"]} != {"hers", "x"}:
        assert time.monotonic() < deadline
        bob.sync()
    until(lambda: queue.depth() == 0, "the answer to hers")


def test_deltas_from_a_custom_queue_are_not_sent_back(opened: Open) -> None:
    bob = opened("bob")
    bob["todos"].insert({"title": "his"}, row_id="b")
    bob.sync()
    queue = MemoryQueue()
    alice = opened("alice", queue=queue)
    alice.sync()
    entered = extract_delta(None, {"title": "x"}, table="todos", row_id="x", client_id="alice", hlc=1 << 50)
    assert entered is not None
    queue.push(entered)
    assert alice.sync().pushed == 1
    alice.sync()
    assert [row["title"] for row in alice["todos"]] == ["his"]


@pytest.mark.parametrize("realtime", [False, True])
def test_auto_sync_pushes_and_pulls(opened: Open, realtime: bool) -> None:
    alice = opened("alice", realtime=realtime, auto_sync=True, interval=0.3)
    bob = opened("bob", realtime=realtime, auto_sync=True, interval=0.3)
    if realtime:
        until(lambda: alice.status.live and bob.status.live and bob.status.last_sync, "both lines")
    with bob.watch("SELECT title FROM todos ORDER BY title") as watch:
        assert watch.next(5) == []
        alice["todos"].insert({"title": "a"}, row_id="a")
        assert watch.next(DEADLINE) == [{"title": "a"}]
    bob.conn.execute("INSERT INTO todos (row_id, title) VALUES ('b', 'by SQL')")
    bob.conn.commit()
    until(lambda: "b" in alice["todos"], "a write by SQL, which no call announced")
    bob.conn.execute("DELETE FROM todos WHERE row_id = 'a'")
    bob.conn.commit()
    until(lambda: "a" not in alice["todos"], "a deletion")
    assert alice.status.live == realtime
    assert alice.status.last_error is None


def test_a_raising_listener_does_not_end_auto_sync(opened: Open) -> None:
    alice = opened("alice", auto_sync=True, interval=0.05, realtime=False)
    errors: list[Exception] = []

    def fail(error: Exception) -> None:
        errors.append(error)
        raise error

    alice.on("onError", fail)
    alice.set_token("none")
    alice["todos"].insert(title="Milk")
    until(lambda: len(errors) > 1, "two failures")
    alice.set_token(sign("alice", opened.gateway))  # type: ignore[attr-defined]
    until(lambda: not alice.pending(), "the push")


def test_edits_wait_while_the_token_is_another_clients(opened: Open) -> None:
    alice = opened("alice")
    alice.sync()
    row_id = alice["todos"].insert(title="Milk")
    alice["todos"].insert(title="Bread")
    alice.set_token(sign("bob", opened.gateway))  # type: ignore[attr-defined]
    with pytest.raises(ForbiddenError, match="'bob'"):
        alice.sync()
    assert [edit.status for edit in alice.pending()] == ["waiting"] * 2
    alice.set_token(sign("alice", opened.gateway))  # type: ignore[attr-defined]
    assert alice.sync().pushed == 2
    assert alice["todos"].get(row_id) is not None
