"""Changes of rules while a gateway is in use: rows are reindexed in parts, across restarts, with pushes in between."""

from __future__ import annotations

import time

from lakesync.engine import Engine
from lakesync.engine.checks import EngineLimits
from lakesync.model.types import SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store
from tests.conformance.book import make_delta


def _by(column):
    filters = [{"column": column, "op": "eq", "value": f"jwt:{column}"}]
    return parse_rules({"version": 1, "buckets": [{"name": "mine", "tables": [], "filters": filters}]})


BY_TEAM, BY_ROOM = _by("team"), _by("room")
CLAIMS = {"sub": "reader", "team": "a", "room": "1"}


def _engine(place, rows):
    engine = Engine(open_store(place.url, place.clock), place.clock, EngineLimits(reindex_rows=rows))
    engine.open()
    return engine


def _write(gateway, clock, names, client="writer", **values):
    clock.advance(1)
    deltas = tuple(make_delta(client, (clock.now_ms << 16) + at, name, **values) for at, name in enumerate(names))
    gateway.handle_push(SyncPush(client, deltas), {"sub": client, "team": "a", "room": "1"})


def _pull_all(gateway, cursor, rows):
    """Return the rows of a client that pulls until nothing is left."""
    while True:
        page = gateway.handle_pull(SyncPull("reader", cursor, 7), CLAIMS)
        for delta in page.deltas:
            if delta.op == "DELETE":
                rows.discard(delta.row_id)
            elif delta.op == "INSERT":
                assert delta.row_id not in rows
                rows.add(delta.row_id)
            else:
                assert delta.row_id in rows
        if not page.deltas:
            return cursor
        cursor = page.server_hlc


def _begin(gateway, rules):
    """Activate rules without reindexing any row."""
    gateway._store.submit("g", lambda commit: commit.put_rules(rules)).result()


def _by_hand(gateway):
    """Stop the background reindex, as if other work kept the store busy."""
    gateway._reindexer.start = lambda _last=None: None


def _is_done(gateway):
    return gateway._store.read("g", gateway.rules.is_reindexed).result()


def _wait_until_done(gateway):
    until = time.monotonic() + 120
    while not _is_done(gateway):
        assert time.monotonic() < until, "the reindex does not end"


def test_rows_are_reindexed_in_separate_commits_between_pushes(place):
    engine = _engine(place, rows=4)
    gateway = engine.gateway("g")
    _by_hand(gateway)
    gateway.set_rules(BY_TEAM)
    _write(gateway, place.clock, [f"r{n:02}" for n in range(20)], team="a", room="1")
    _write(gateway, place.clock, [f"s{n:02}" for n in range(10)], team="a", room="2")
    _write(gateway, place.clock, [f"t{n:02}" for n in range(10)], team="b", room="1")
    held = set()
    cursor = _pull_all(gateway, 0, held)
    assert {name[0] for name in held} == {"r", "s"}
    _begin(gateway, BY_ROOM)
    cursor = _pull_all(gateway, cursor, held)
    assert held == {f"r{n:02}" for n in range(20)}, "hidden rows are removed although no row is reindexed yet"
    done = gateway._reindexer.submit().result()
    commits = 1
    while not done.done:
        _write(gateway, place.clock, [f"u{commits}"], team="b", room="1")
        cursor = _pull_all(gateway, cursor, held)
        assert f"u{commits}" in held
        done = gateway._reindexer.submit(done).result()
        commits += 1
    assert commits > 10
    _pull_all(gateway, cursor, held)
    moved_in = {f"t{n:02}" for n in range(10)}
    assert {name for name in held if name[0] != "u"} == {f"r{n:02}" for n in range(20)} | moved_in
    engine.close()


def test_a_reindex_continues_after_a_restart(place):
    engine = _engine(place, rows=3)
    gateway = engine.gateway("g")
    _by_hand(gateway)
    gateway.set_rules(BY_TEAM)
    _write(gateway, place.clock, [f"r{n:02}" for n in range(30)], team="a", room="1")
    held = set()
    cursor = _pull_all(gateway, 0, held)
    _begin(gateway, BY_ROOM)
    done = gateway._reindexer.submit().result()
    gateway._reindexer.submit(done).result()
    mark = gateway._store.read("g", lambda view: view.reindexing()).result()
    assert mark.after == ("notes", "r02")
    engine.close()
    engine = _engine(place, rows=3)
    gateway = engine.gateway("g")
    _wait_until_done(gateway)
    keys = gateway._store.submit("g", lambda commit: {row.keys for row in commit.scan_rows(None, 100)}).result()
    shown = gateway._store.read("g", lambda view: gateway.rules.access(view, CLAIMS).keys).result()
    assert keys == {tuple(shown)}
    _pull_all(gateway, cursor, held)
    assert len(held) == 30
    engine.close()


def test_another_change_of_rules_restarts_a_reindex(place):
    engine = _engine(place, rows=3)
    gateway = engine.gateway("g")
    _by_hand(gateway)
    _write(gateway, place.clock, [f"r{n:02}" for n in range(12)], team="a", room="2")
    held = set()
    cursor = _pull_all(gateway, 0, held)
    _begin(gateway, BY_ROOM)
    done = gateway._reindexer.submit().result()
    cursor = _pull_all(gateway, cursor, held)
    assert not held
    _begin(gateway, BY_TEAM)
    while not done.done or not _is_done(gateway):
        done = gateway._reindexer.submit(done).result()
    _pull_all(gateway, cursor, held)
    assert len(held) == 12
    engine.close()


def test_many_rows_are_reindexed_in_the_background(place):
    engine = _engine(place, rows=5)
    gateway = engine.gateway("g")
    _write(gateway, place.clock, [f"r{n:02}" for n in range(60)], team="a", room="1")
    gateway.set_rules(BY_ROOM)
    _write(gateway, place.clock, ["late"], team="a", room="1")
    _wait_until_done(gateway)
    held = set()
    _pull_all(gateway, 0, held)
    assert len(held) == 61
    engine.close()
