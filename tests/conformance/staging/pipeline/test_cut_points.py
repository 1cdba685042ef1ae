"""Cut points of a gateway: whole pushes on either side, the active rules, and one arrival for all shards."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest

from lakesync.engine import Engine
from lakesync.engine.checks import EngineLimits
from lakesync.model.errors import IntegrityError
from lakesync.model.types import SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_staging, open_store
from lakesync.staging.cut_point import common_cut_point
from lakesync.staging.records import Checkpoint, CheckpointTable, CutPoint
from lakesync.staging.shards import ShardMap
from tests.conformance.book import make_delta
from tests.conformance.calls import push

SHARDS = ShardMap({"orders": "shard-orders"}, "shard-default")
RULES = parse_rules({"version": 1, "buckets": [{"name": "notes", "tables": ["notes"], "filters": []}]})


def test_every_push_is_on_one_side_of_a_cut_point(store, book, clock):
    before = push(store, book, make_delta("a", 1, "r1", x=1), make_delta("a", 2, "r2", x=1))
    hold = store.cut_point("g")
    assert (hold.arrival, hold.rules_version, hold.shards) == (before.arrival, 0, {})
    assert store.cut_point("g") == hold
    clock.advance(5)
    after = push(store, book, make_delta("a", 3, "r3", x=1), make_delta("a", 4, "r4", x=1))
    assert after.arrival - 256 > hold.arrival


def test_a_cut_point_has_no_rules_version_during_a_reindex(place):
    engine = Engine(open_store(place.url, place.clock), place.clock, EngineLimits(reindex_rows=1))
    engine.open()
    try:
        gateway = engine.gateway("g")
        gateway._reindexer.start = lambda _last=None: None
        deltas = tuple(make_delta("a", hlc, f"r{hlc}", x=1) for hlc in range(1, 4))
        gateway.handle_push(SyncPush("a", deltas), {"sub": "a"})
        pushed = engine.store.cut_point("g")
        gateway.set_rules(RULES)
        assert engine.store.cut_point("g").rules_version is None
        done = None
        while done is None or not done.done:
            done = gateway._reindexer.submit(done).result()
        hold = engine.store.cut_point("g")
        assert hold.rules_version == 1
        assert hold.arrival > pushed.arrival, "rows moved into the new bucket above the last push"
    finally:
        engine.close()


def test_the_common_cut_point_of_two_stores_is_kept(place, store, book, clock):
    with_other = open_store("memory://", clock)
    with_other.open(book)
    with_other.ensure_gateway("g")
    try:
        push(store, book, make_delta("a", 1, "r1", x=1))
        clock.advance(-60_000)
        push(with_other, book, make_delta("a", 1, "r1", x=1))
        stores = {"one": with_other, "two": store}
        hold = common_cut_point("g", stores)
        assert set(hold.shards) == {"one", "two"}
        assert common_cut_point("g", stores) == hold
        store = place.reopen(store, book)
        assert store.cut_point("g").arrival == hold.arrival
        for each in (with_other, store):
            assert push(each, book, make_delta("a", 2, "r2", x=1)).arrival > hold.arrival
    finally:
        with_other.close()


@contextmanager
def opened(names, wall, book):
    """Open stores in memory, each with the gateway "g", by name."""
    stores = {name: open_store("memory://", wall) for name in names}
    with ExitStack() as closing:
        for store in stores.values():
            store.open(book)
            closing.callback(store.close)
            store.ensure_gateway("g")
        yield stores


def test_shards_agree_on_a_cut_point_in_the_last_attempt(clock, book, monkeypatch):
    monkeypatch.setattr("lakesync.staging.cut_point.MAX_ATTEMPTS", 1)
    with opened(("one", "two"), clock, book) as stores:
        for number, store in enumerate(stores.values(), 1):  # the default shard is one push behind
            for tick in range(number):
                push(store, book, make_delta("a", tick, f"r{tick}", x=1))
        assert stores["one"].cut_point("g").arrival < stores["two"].cut_point("g").arrival
        hold = common_cut_point("g", stores)
        assert {store.cut_point("g").arrival for store in stores.values()} == {hold.arrival}


def test_shards_that_are_slower_than_the_first_lead_agree_on_a_cut_point(clock, book):
    def slow_wall() -> int:
        clock.advance(150)  # each reading: the commits of all shards together take longer than the lead
        return clock.now_ms

    with opened(("one", "two", "three", "four"), slow_wall, book) as stores:
        for number, store in enumerate(stores.values(), 1):
            push(store, book, make_delta("a", number, "r1", x=1))
        hold = common_cut_point("g", stores)
        assert {store.cut_point("g").arrival for store in stores.values()} == {hold.arrival}


@pytest.fixture
def sharded(tmp_path, clock):
    engine = Engine(open_staging(f"sqlite://{tmp_path}", SHARDS, clock), clock)
    engine.open()
    engine.gateway("g")
    yield engine
    engine.close()


def cut(hold: CutPoint) -> Checkpoint:
    tables = tuple(CheckpointTable(name, 1, 1, (f"file:///{name}",), 1) for name in ("notes", "orders"))
    return Checkpoint("g", hold.epoch, hold.arrival, hold.rules_version or 0, tables, 0, hold.shards)


def test_a_checkpoint_of_all_shards_is_published_shard_by_shard(sharded):
    gateway = sharded.gateway("g")
    gateway.set_rules(RULES)
    gateway.handle_push(SyncPush("a", (make_delta("a", 1, "r1", x=1), make_delta("a", 2, "o1", "orders", x=1))))
    assert sharded.store.newest_checkpoint("g") is None
    hold = sharded.store.cut_point("g")
    made = cut(hold)
    with pytest.raises(IntegrityError, match="lacks the cut points of shard-default, shard-orders"):
        sharded.store.publish_checkpoint(Checkpoint("g", hold.epoch, hold.arrival, 1, made.tables, 0))

    orders = sharded.store.stores["shard-orders"]
    assert orders.publish_checkpoint(
        Checkpoint("g", hold.shards["shard-orders"].epoch, hold.arrival, 1, made.tables[1:], 0)
    )
    assert sharded.store.newest_checkpoint("g") is None, "the crash left out the other shard"
    assert not sharded.store.publish_checkpoint(made)
    assert sharded.store.newest_checkpoint("g") == made
    assert [part.table for part in orders.newest_checkpoint("g").tables] == ["orders"]
    assert gateway.submit_checkpoint("bob", {"sub": "bob"}).result().tables == made.tables

    gateway.handle_push(SyncPush("a", (make_delta("a", 3, "r2", x=1),)))
    later = sharded.store.cut_point("g")
    assert later.arrival > hold.arrival
    assert sharded.store.publish_checkpoint(cut(later))
    assert sharded.store.newest_checkpoint("g") == cut(later)
