"""Prefetching of pages during a long pull."""

from __future__ import annotations

import threading

import pytest

import lakesync
from lakesync.client import LocalTransport
from lakesync.client.core import CoreLimits
from lakesync.client.errors import UnreachableError
from lakesync.client.sync import prefetch
from lakesync.model.types import SyncResponse

ROWS, PAGE = 60, 5
DEADLINE = 60.0
TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}]}


class RecordingTransport(LocalTransport):
    """Records requests, and fails on demand."""

    def __init__(self, gateway):
        super().__init__(gateway)
        self.asked: list[tuple[str, int]] = []
        self.fails_at = 0
        self._came = threading.Condition()

    def pull(self, pull):
        if len(self.asked) + 1 == self.fails_at:
            self.fails_at = 0
            raise UnreachableError("gone")
        page = super().pull(pull)
        with self._came:
            self.asked.append(("pull", pull.since_hlc))
            self._came.notify_all()
        return page

    def push(self, push):
        self.asked.append(("push", 0))
        return super().push(push)

    def wait_for(self, pulls):
        with self._came:
            assert self._came.wait_for(lambda: len(self.asked) >= pulls, DEADLINE)


@pytest.fixture
def gateway():
    with lakesync.open_gateway("g") as opened:
        alice = lakesync.open(":memory:", client_id="alice", schemas=[TODOS], transport=LocalTransport(opened))
        with alice:
            for number in range(ROWS):
                alice["todos"].insert({"title": f"no {number}"}, row_id=f"r{number:02}")
            alice.sync()
        yield opened


@pytest.fixture
def bob(gateway):
    transport, limits = RecordingTransport(gateway), CoreLimits(pull_deltas=PAGE)
    with lakesync.open(":memory:", client_id="bob", schemas=[TODOS], transport=transport, limits=limits) as client:
        yield client


def written(client, monkeypatch, before=lambda _: None):
    """The number of deltas in each page that is written from now on; `before` is called before each write."""
    sizes = []
    receive = client.coordinator.replica.receive

    def noted(answer):
        if isinstance(answer, SyncResponse):
            before(answer)
            sizes.append(len(answer.deltas))
        return receive(answer)

    monkeypatch.setattr(client.coordinator.replica, "receive", noted)
    return sizes


def titles(client):
    return sorted(row["title"] for row in client["todos"])


EVERYTHING = sorted(f"no {number}" for number in range(ROWS))


def test_pages_prefetched_during_a_write_are_written_together(bob, monkeypatch):
    sizes = written(bob, monkeypatch, lambda _: bob.transport.wait_for(prefetch.MAX_PAGES + 1))
    assert bob.sync().pulled == ROWS
    assert titles(bob) == EVERYTHING
    assert sizes[:2] == [PAGE, prefetch.MAX_PAGES * PAGE]
    assert max(sizes) <= prefetch.MAX_PAGES * PAGE
    assert len(set(bob.transport.asked)) == len(bob.transport.asked) == ROWS // PAGE


def test_a_prefetch_error_is_raised_after_the_pages_before_it(bob):
    bob.transport.fails_at = 4
    with pytest.raises(UnreachableError, match="gone"):
        bob.sync()
    assert len(titles(bob)) == 3 * PAGE
    bob.sync()
    assert titles(bob) == EVERYTHING


def test_a_page_prefetched_before_a_push_is_pulled_again_after_it(bob, monkeypatch):
    def write(page):
        if "mine" not in bob["todos"]:
            bob.transport.wait_for(3)
            bob["todos"].insert({"title": "mine"}, row_id="mine")
            cursors.append(page.server_hlc)

    cursors: list[int] = []
    written(bob, monkeypatch, write)
    bob.sync()
    assert titles(bob) == sorted([*EVERYTHING, "mine"])
    asked, again = bob.transport.asked, ("pull", cursors[0])
    pushed = asked.index(("push", 0))
    assert again in asked[:pushed]
    assert asked[pushed + 1] == again


def test_no_page_is_prefetched_above_the_byte_limit(bob, monkeypatch):
    monkeypatch.setattr(prefetch, "MAX_BYTES", 0)
    pulled = []
    sizes = written(bob, monkeypatch, lambda _: pulled.append(len(bob.transport.asked)))
    bob.sync()
    assert titles(bob) == EVERYTHING
    assert set(sizes) == {PAGE}
    assert pulled == list(range(1, ROWS // PAGE + 1))


def test_a_failed_pull_leaves_no_prefetch_in_progress(bob, monkeypatch):
    def broken(page):
        bob.transport.wait_for(2)
        raise KeyboardInterrupt

    written(bob, monkeypatch, broken)
    with pytest.raises(KeyboardInterrupt):
        bob.sync()
    assert "lakesync-ahead" not in {thread.name for thread in threading.enumerate()}
