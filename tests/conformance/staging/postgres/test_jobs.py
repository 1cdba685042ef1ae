"""The jobs of the Postgres store: submitted functions, several of which share a transaction."""

from __future__ import annotations

import threading

import pytest

from lakesync.staging import open_store
from tests.conformance.book import Book, make_delta
from tests.conformance.places import postgres

DEADLINE = 30


@pytest.fixture
def store(request, clock):
    """An open store with the gateway `g`."""
    opened = open_store(postgres(request), clock)
    opened.open(Book())
    opened.ensure_gateway("g")
    yield opened
    opened.close()


def test_jobs_run_after_a_listener_has_ended_its_thread(store):
    called = threading.Event()

    def leave(notice):
        if notice.buckets is not None:  # raised by the notification of a commit, in the thread that ran it
            called.set()
            raise SystemExit

    stop_watching = store.watch(leave)
    store.submit("g", Book().push([make_delta("c", 1, "r1", x=1)]))
    assert called.wait(DEADLINE)
    stop_watching()
    assert store.submit("g", Book().push([make_delta("c", 2, "r2", x=1)])).result(DEADLINE).seq == 2


def test_a_callback_that_ends_its_thread_does_not_affect_other_jobs(store):
    def leave(future):
        raise SystemExit

    release = threading.Event()
    store.submit("g", lambda _: release.wait(DEADLINE))
    store.submit("g", lambda _: None).add_done_callback(leave)
    same_group = store.submit("g", lambda _: "same group")
    release.set()
    assert same_group.result(DEADLINE) == "same group"
    assert store.submit("g", lambda _: "later group").result(DEADLINE) == "later group"
