"""P2: acknowledged pushes survive `kill -9` at any point, and no push is stored in part."""

from __future__ import annotations

import time

import pytest
from msgspec import Raw

from lakesync.engine import Engine
from lakesync.engine.checks import EngineLimits
from lakesync.feed.row_buckets import keys_of
from lakesync.model.crash_points import VARIABLE
from lakesync.model.types import SyncPull, SyncPush
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import all_rows_rules, parse_rules
from lakesync.testing import ManualClock
from tests.conformance import pusher
from tests.conformance.book import Book, contents, id_sum, make_delta
from tests.conformance.places import Place
from tests.conformance.pusher import deltas_of, make_store
from tests.forked import run_code, run_until_killed

BY_TEAM = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    }
)


def push_until_killed(url: str, crash_at: str) -> list[int]:
    """Push until the process dies at a named crash point; return the acknowledged pushes."""
    return [int(line) for line in run_until_killed(pusher.main, url, 100_000, crash_at=crash_at).split()]


def untouched(folder, pushes):
    """The content of a store that took the same pushes and never crashed, reopened or not."""
    store = make_store(f"sqlite://{folder}")
    book = Book()
    store.open(book)
    store.ensure_gateway("g")
    try:
        for number in range(1, pushes + 1):
            store.submit("g", book.push(deltas_of(number))).result()
        return store.read("g", contents).result(), store.backlog(), store.ledger("g")
    finally:
        store.close()


PLACES = [
    "staging.before_commit:7",
    "staging.after_commit:1",
    "staging.after_commit:9",
    "staging.before_write_behind:3",
    "staging.after_write_behind:3",
]


@pytest.mark.parametrize("crash_at", PLACES)
def test_a_killed_owner_leaves_a_prefix_of_whole_pushes(tmp_path, crash_at):
    url = f"sqlite://{tmp_path / 'killed'}"
    acknowledged = push_until_killed(url, crash_at)
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    store = make_store(url)
    book = Book()
    store.open(book)
    try:
        kept = store.backlog()[0].last_seq if store.gateways() else 0
        assert len(acknowledged) <= kept <= len(acknowledged) + 3
        seqs = [seq for _, seq in book.replayed]
        assert seqs == list(range(kept - len(seqs) + 1, kept + 1))
        if kept:
            found = store.read("g", contents).result(), store.backlog(), store.ledger("g")
            assert found == untouched(tmp_path / "untouched", kept)
            again = [store.submit("g", book.push(deltas_of(number))).result() for number in range(1, kept + 1)]
            assert again == [None] * kept
    finally:
        store.close()


def test_a_repeatedly_killed_store_continues(tmp_path):
    url = f"sqlite://{tmp_path / 'killed'}"
    for round_ in range(4):
        push_until_killed(url, f"staging.after_commit:{5 + round_}")
    store = make_store(url)
    store.open(Book())
    try:
        kept = store.backlog()[0].last_seq
        assert kept > 10
        found = store.read("g", contents).result(), store.backlog(), store.ledger("g")
        assert found == untouched(tmp_path / "untouched", kept)
    finally:
        store.close()


AROUND_A_CHANGE_OF_RULES = [
    "staging.before_commit:8",
    "staging.after_commit:8",
    *(f"staging.before_write_behind:{count}" for count in (2, 3, 4)),
    "staging.after_write_behind:2",
]


@pytest.mark.parametrize("crash_at", AROUND_A_CHANGE_OF_RULES)
def test_after_a_kill_during_a_change_of_rules_rows_are_indexed_by_the_active_rules(tmp_path, crash_at):
    url = f"sqlite://{tmp_path / 'killed'}"
    run_until_killed(change_rules, url, crash_at=crash_at)
    engine = opened(url)
    try:
        gateway = engine.gateway("g")
        finish_reindex(gateway)
        rules = gateway.config().rules
        assert rules == (None if crash_at == "staging.before_commit:8" else BY_TEAM)
        rows = gateway._store.submit("g", lambda commit: commit.scan_rows(None, 100)).result()
        assert len(rows) == 11
        assert all(row.keys == keys_of(row, BucketIndex(rules or all_rows_rules())) for row in rows)
        seen = gateway.handle_pull(SyncPull("reader", 0, 1000), {"sub": "reader", "team": "red"}).deltas
        visible = [row.row_id for row in rows if row.state.visible and (rules is None or _is_red(row))]
        assert {delta.row_id for delta in seen} == set(visible)
    finally:
        engine.close()


def change_rules(url: str) -> None:
    """Push, and change the rules."""
    gateway = opened(url).gateway("g")
    for number in range(1, 6):
        gateway.handle_push(SyncPush("c", tuple(deltas_of(number))))
    gateway.set_rules(BY_TEAM)
    finish_reindex(gateway)


def opened(url):
    """Open an engine that updates two rows in each commit after a change of rules."""
    clock = ManualClock(1_700_000_000_000)
    engine = Engine(make_store(url), clock, EngineLimits(reindex_rows=2))
    engine.open()
    return engine


def finish_reindex(gateway):
    """Wait until all rows have the bucket keys of the active rules."""
    until = time.monotonic() + 120
    while not gateway._store.read("g", gateway.rules.is_reindexed).result():
        assert time.monotonic() < until, "the re-index does not end"


def _is_red(row):
    return row.value("team") == Raw(b'"red"')


def test_a_kill_before_a_trim_keeps_all_bodies(tmp_path):
    clock = ManualClock()
    place = Place(f"sqlite://{tmp_path / 'killed'}", clock)
    book = Book()
    store = place.open(book)
    store.ensure_gateway("g")
    deltas = [make_delta("c", 1, "r", x=1)]
    store.submit("g", book.push(deltas)).result()
    batch = store.plan("g", "main", 10)
    store.confirm(batch.batch_id, 1, id_sum(deltas))
    store.close()
    script = (
        "import sys; from tests.conformance.pusher import make_store; from tests.conformance.book import Book;"
        "store = make_store(sys.argv[1]); store.open(Book()); store.trim('g', 'main')"
    )
    assert run_code(script, place.url, **{VARIABLE: "staging.before_trim"}) == -9
    store = place.open(book)
    assert store.plan("g", "main", 10) is None
    assert store.trim("g", "main") == batch.bytes
    place.close()


@pytest.mark.parametrize("crash_at", ["staging.before_commit:4", "staging.after_commit:4"])
def test_a_killed_process_leaves_whole_pushes_on_postgres(request, crash_at):
    from tests.conformance.places import postgres

    url = postgres(request)
    acknowledged = push_until_killed(url, crash_at)
    store = make_store(url)
    book = Book()
    store.open(book)
    try:
        kept = store.backlog()[0].last_seq
        assert len(acknowledged) <= kept <= len(acknowledged) + 3
        rows, entries = store.read("g", contents).result()
        assert book.replayed == []
        assert {row.row_id for row in rows} >= {f"s{kept}"}
        assert max(entry.changed for entry in entries) == store.backlog()[0].last_arrival
        again = [store.submit("g", book.push(deltas_of(number))).result() for number in range(1, kept + 1)]
        assert again == [None] * kept
    finally:
        store.close()
