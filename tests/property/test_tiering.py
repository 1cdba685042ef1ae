"""Readers of two tiers read every delta exactly once, whatever is moved between their pages."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.adapters import DeltaBatch, DeltaQuery, LifecycleAdapter, SqliteAdapter, StoredDelta
from lakesync.adapters.arrow_access import copy_page, read_arrow, read_pages
from lakesync.model.hlc import encode
from tests.conformance.book import make_delta

DAY = 86_400_000
DAYS = 6
PAGE = 3

steps = st.lists(
    st.tuples(st.just("insert"), st.integers(0, DAYS))
    | st.tuples(st.just("move"), st.integers(0, DAYS))
    | st.tuples(st.sampled_from(["copied and killed", "half deleted"]), st.integers(0, DAYS))
    | st.tuples(st.just("page"), st.just(0)),
    max_size=14,
)


class World:
    """Two tiers, and every delta that was ever inserted."""

    def __init__(self, folder):
        self.hot, self.cold = SqliteAdapter(folder / "hot.db"), SqliteAdapter(folder / "cold.db")
        self.tiers = LifecycleAdapter(self.hot, self.cold, 0)
        self.held: list[StoredDelta] = []

    def insert(self, day):
        number = len(self.held) + 1
        delta = make_delta("c", encode(day * DAY, number), f"r{number % 4}", x=number)
        self.held.append(StoredDelta("g", 256 * number, delta))
        self.tiers.insert_deltas(DeltaBatch(f"g.{number}", "g", (self.held[-1],)))

    def move(self, day, how):
        until = encode(day * DAY, 60_000)
        if how == "move":
            self.tiers.migrate_to_tier(day * DAY)
            return
        deltas = read_arrow(self.hot, DeltaQuery(order="hlc", until=until, limit=PAGE)).deltas
        if len(deltas):
            copy_page(self.cold, "tier", deltas)
            if how == "half deleted":
                self.hot.delete_deltas(deltas.slice(0, 1 + len(deltas) // 2))

    def reader(self, order):
        for page in read_pages(self.tiers, DeltaQuery(order=order, limit=PAGE)):
            yield list(zip(page.deltas["hlc"].to_pylist(), page.deltas["delta_id"].to_pylist(), strict=True))


@settings(max_examples=25, deadline=None)
@given(
    before=st.lists(st.integers(0, DAYS), min_size=1, max_size=12),
    steps=steps,
    order=st.sampled_from(["hlc", "arrival"]),
)
def test_readers_miss_no_delta_while_days_move_between_their_pages(tmp_path_factory, before, steps, order):
    world = World(tmp_path_factory.mktemp("tiers"))
    for day in before:
        world.insert(day)
    begun = {(each.delta.hlc, each.delta.delta_id) for each in world.held}
    reader, seen = world.reader(order), []
    for what, day in steps:
        if what == "insert":
            world.insert(day)
        elif what == "page":
            seen += next(reader, [])
        else:
            world.move(day, what)
    for page in reader:
        seen += page
    assert len(seen) == len(set(seen))
    assert begun <= set(seen)
    assert len(world.tiers.query_arrow(DeltaQuery(order=order)).deltas) == len(world.held)
    world.tiers.close()
