"""Arrivals of every staging store increase strictly, whatever the clock's time."""

from __future__ import annotations

from lakesync.staging.records import ARRIVAL_STEP
from tests.conformance.book import make_delta
from tests.conformance.calls import push, read


def test_arrivals_follow_the_clock(store, clock):
    first = store.submit("g", lambda commit: commit.next_arrivals(3)).result()
    assert list(first) == [(clock.now_ms << 16) + i * ARRIVAL_STEP for i in range(3)]
    clock.advance(10)
    assert store.submit("g", lambda commit: commit.next_arrivals(1)).result()[0] == clock.now_ms << 16


def test_arrivals_never_decrease_with_the_clock_or_a_restart(place, store, book, clock):
    before = push(store, book, make_delta("c", 1, "r", x=1)).arrival
    clock.advance(-3_600_000)
    stepped = push(store, book, make_delta("c", 2, "r", x=2)).arrival
    assert stepped == before + ARRIVAL_STEP
    store = place.reopen(store, book)
    after = push(store, book, make_delta("c", 3, "r", x=3)).arrival
    assert after == stepped + ARRIVAL_STEP
    assert read(store, lambda view: view.arrival) == after


def test_arrivals_without_a_log_row_are_not_reused(place, store, book, clock):
    last = store.submit("g", lambda commit: commit.next_arrivals(1000)).result()[-1]
    clock.advance(-1000)
    store = place.reopen(store, book)
    assert store.submit("g", lambda commit: commit.next_arrivals(1)).result()[0] > last


def test_requesting_zero_arrivals_returns_none(store):
    assert list(store.submit("g", lambda commit: commit.next_arrivals(0)).result()) == []
