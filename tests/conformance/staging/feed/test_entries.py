"""Feed entries of every staging store, against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.staging.records import ARRIVAL_STEP, Entry, Move
from tests.conformance.calls import read

OWN = "@client"

arrivals_and_moves = st.lists(
    st.tuples(
        st.sampled_from(["b1", "b2", OWN]),
        st.sampled_from(["r1", "r2", "r3", "r4"]),
        st.sampled_from(["join", "stay", "leave"]),
    ),
    max_size=30,
)


@pytest.fixture
def gateways(store):
    """Return a new gateway at each call, for examples that share one store."""
    numbers = iter(range(10_000))

    def make() -> str:
        name = f"example-{next(numbers)}"
        store.ensure_gateway(name)
        return name

    return make


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pushes=st.lists(arrivals_and_moves, max_size=4), limit=st.integers(1, 5), skip=st.integers(0, 40))
def test_entries_equal_those_of_a_naive_model(store, gateways, pushes, limit, skip):
    gateway = gateways()
    model: dict[tuple[str, str], _History] = {}

    def work(commit, moves):
        made = []
        for (bucket, row, drawn), arrival in zip(moves, commit.next_arrivals(len(moves)), strict=True):
            history = model.setdefault((bucket, row), _History())
            kind = "own" if bucket == OWN else drawn if (drawn == "join") != history.inside else _OTHERWISE[drawn]
            made.append(Move(bucket, "t", row, arrival, kind))
            history.move(kind, arrival)
        commit.put_rows((), made)

    for moves in pushes:
        store.submit(gateway, lambda commit, moves=moves: work(commit, moves)).result()
    buckets = ["b1", OWN, "never used"]
    start = read(store, lambda view: view.arrival, gateway) - skip * ARRIVAL_STEP
    expected = sorted(
        (history.entry(bucket, row) for (bucket, row), history in model.items() if bucket in buckets),
        key=lambda entry: entry.changed,
    )
    paged, since = [], start
    while page := read(store, lambda view, s=since: view.entries_after(buckets, s, limit), gateway):
        assert len(page) <= limit
        since = page[-1].changed
        paged += page
    assert paged == [entry for entry in expected if entry.changed > start]
    of = read(store, lambda view: view.entries_of([("t", "r1"), ("t", "r9")], buckets), gateway)
    assert sorted(of, key=lambda entry: entry.changed) == [entry for entry in expected if entry.row_id == "r1"]
    assert read(store, lambda view: view.changed_after(buckets, start), gateway) == bool(paged)
    for entry in expected:
        history = model[entry.bucket, entry.row_id]
        assert [entry.left] == (history.leaves[-1:] or [0])
        if entry.bucket != OWN and len(history.joins) <= 2:
            _is_what_its_stays_say(entry, history)


def test_a_row_in_several_buckets_has_an_entry_in_each(store):
    def work(commit):
        (arrival,) = commit.next_arrivals(1)
        commit.put_rows((), [Move(bucket, "t", "r", arrival, "join") for bucket in ("b2", "b1")])

    store.submit("g", work).result()
    entries = read(store, lambda view: view.entries_after(["b2", "b1"], 0, 10))
    assert [entry.bucket for entry in entries] == ["b1", "b2"]


def test_buckets_are_found_by_prefix(store):
    names = ["team:a", "team:a\U0010ffffz", "team:b", "teal", "teams"]

    def work(commit):
        arrivals = commit.next_arrivals(5)
        commit.put_rows((), [Move(name, "t", "r", at, "join") for name, at in zip(names, arrivals, strict=True)])

    store.submit("g", work).result()
    assert read(store, lambda view: view.buckets("team:")) == ["team:a", "team:a\U0010ffffz", "team:b"]
    assert read(store, lambda view: view.buckets("team:a")) == ["team:a", "team:a\U0010ffffz"]
    assert sorted(read(store, lambda view: view.buckets(""))) == sorted(names)


_OTHERWISE = {"join": "stay", "stay": "join", "leave": "join"}
"""The replacement of an impossible move: a row inside cannot join, and one outside can neither stay nor leave."""


class _History:
    """All positions of one entry."""

    def __init__(self):
        self.own, self.changed, self.inside = 0, 0, False
        self.joins, self.leaves = [], []

    def move(self, kind: str, arrival: int) -> None:
        self.changed = arrival
        if kind == "own":
            self.own = self.own or arrival
        elif kind == "join":
            self.joins.append(arrival)
            self.inside = True
        elif kind == "leave":
            self.leaves.append(arrival)
            self.inside = False

    def entry(self, bucket: str, row: str) -> Entry:
        first, since = (self.joins[0], self.joins[-1]) if self.joins else (self.own, 0)
        before = [left for left in self.leaves if left < since]
        return Entry(bucket, "t", row, first, since, before[-1] if before else 0, self.changed, self.inside)

    def was_inside(self, low: int, high: int) -> bool:
        ends = [*self.leaves, high + 1]
        return any(joined <= high and left > low for joined, left in zip(self.joins, ends, strict=False))


def _is_what_its_stays_say(entry: Entry, history: _History) -> None:
    """For a row that joined at most twice, an entry knows the arrivals at which the row was inside."""
    places = [0, *history.joins, *history.leaves, history.changed]
    for low in places:
        assert entry.may_be_inside_at(low) == history.was_inside(low, low)
        for high in places:
            assert low > high or entry.may_be_inside_between(low, high) == history.was_inside(low, high)
