"""The pages, peeks and cursors of a gateway over two shards."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from lakesync.engine.pushing import PushRequest
from lakesync.engine.subscribers import Newcomer, SubscriberGroup, SubscriptionState
from lakesync.feed.pull import MAX_PAGE_BYTES
from lakesync.model.errors import ResyncRequiredError
from lakesync.model.types import ColumnValue, SyncPull, SyncPush
from lakesync.staging.shards import ShardMap
from tests.integration.embedded.sharded_support import START, both, delta, opened


def test_subscribers_in_the_same_state_share_one_page_and_its_cursor(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    try:
        gateway = engine.gateway("g")
        people = ["bob", "carol", "dave"]
        gateway.handle_push(both(1))
        cursors = {name: gateway.handle_pull(SyncPull(name, 0)).server_hlc for name in people}
        newcomers = [Newcomer(name, {"sub": name}, SubscriptionState(cursor, 100)) for name, cursor in cursors.items()]
        first = gateway.submit_subscribe(newcomers).result()
        groups = [
            SubscriberGroup(state, frozenset([name]), frozenset(), frozenset())
            for name, state in zip(people, first, strict=True)
        ]
        gateway.handle_push(both(2))
        found = gateway.submit_scan(groups).result()
        assert len({id(each.state) for each in found}) == 1
        assert [each.needs_pull for each in found] == [False] * 3
        page = found[0].page_of("bob")
        assert page is not None
        assert {delta.key for delta in page.deltas} == {("orders", "2"), ("todos", "2")}
        assert page.server_hlc > max(cursors.values())
        gateway.handle_push(both(3))
        (again,) = gateway.submit_scan(
            [SubscriberGroup(found[0].state, frozenset(people), frozenset(), frozenset())]
        ).result()
        assert again.page is not None
        assert {delta.row_id for delta in again.page.deltas} == {"3"}
        engine.close()
        engine = opened(tmp_path)
        gateway = engine.gateway("g")
        gateway.handle_push(both(4))
        for name in people:
            later = gateway.handle_pull(SyncPull(name, again.page.server_hlc))
            assert {delta.row_id for delta in later.deltas} == {"4"}, "nothing that the page had brought"
            assert later.server_hlc > again.page.server_hlc
            assert not gateway.handle_pull(SyncPull(name, later.server_hlc)).deltas
    finally:
        engine.close()


@pytest.mark.parametrize("unknown", [(START + 2 * 24 * 3_600_000) << 16, 1 << 62, (1 << 63) - 1])
def test_an_unknown_cursor_ahead_of_the_clock_affects_no_other_cursor(tmp_path: Path, unknown: int) -> None:
    engine = opened(tmp_path)
    latest = (START + 60_000) << 16  # no cursor is this far ahead of the clock
    try:
        gateway = engine.gateway("g")
        gateway.handle_push(both(1))

        def broadcast_to(name: str, since: int, row: int) -> int:
            """Return the cursor of a broadcast of a new row to a client that pulls once and subscribes."""
            cursor = gateway.handle_pull(SyncPull(name, since)).server_hlc
            assert cursor < latest
            newcomer = Newcomer(name, {"sub": name}, SubscriptionState(cursor, 100))
            (state,) = gateway.submit_subscribe([newcomer]).result()
            gateway.handle_push(both(row))
            group = SubscriberGroup(state, frozenset([name]), frozenset(), frozenset())
            (found,) = gateway.submit_scan([group]).result()
            page = found.page_of(name)
            assert page is not None
            return page.server_hlc

        cursor = broadcast_to("bob", 0, row=2)
        assert broadcast_to("eve", unknown, row=3) < latest
        pushed = gateway.submit_push(
            partial(PushRequest, both(4, "eve"), {"sub": "eve"}, known_cursor=unknown)
        ).result()
        assert pushed.server_hlc < latest
        page = gateway.handle_pull(SyncPull("bob", cursor))
        assert {each.row_id for each in page.deltas} == {"3", "4"}, "its cursor is still known"
    finally:
        engine.close()


def test_a_busy_shard_does_not_keep_peeks_from_the_other_one(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    gateway, claims, cursor, seen = engine.gateway("g"), {"sub": "reader"}, "now", []
    cursor = gateway.submit_peek(claims, cursor, 1).result().cursor
    gateway.handle_push(SyncPush("alice", (delta("orders", 1000),)))
    for row in range(0, 8, 2):  # in the default shard, more than a page each time
        gateway.handle_push(SyncPush("alice", (delta("todos", row), delta("todos", row + 1))))
        page = gateway.submit_peek(claims, cursor, 1).result()
        cursor = page.cursor
        seen += [each.table for each in page.deltas]
    assert "orders" in seen
    engine.close()


def test_a_peek_cursor_ends_with_the_set_of_shards_that_it_names(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    engine.gateway("g").handle_push(both(1))
    cursors = [engine.gateway("g").submit_peek({"sub": "reader"}, since, 1).result().cursor for since in (None, "now")]
    engine.close()
    engine = opened(tmp_path, shards=ShardMap({"orders": "shard-orders", "products": "shard-new"}, "shard-default"))
    gateway = engine.gateway("g")
    gateway.handle_push(SyncPush("alice", (delta("products", 2),)))
    for cursor in (*cursors, f"{cursors[0]},shard-x=1-1", "shard-x=1-1"):
        with pytest.raises(ResyncRequiredError, match="the shards changed"):
            gateway.submit_peek({"sub": "reader"}, cursor, 10).result()
    engine.close()


def test_a_peeked_page_over_all_shards_is_as_large_as_one_of_a_shard(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    gateway, text = engine.gateway("g"), "x" * (MAX_PAGE_BYTES // 4)
    for table in ("todos", "orders"):
        for row in range(3):
            wide = replace(delta(table, row), columns=(ColumnValue.of("text", text),))
            gateway.handle_push(SyncPush("alice", (wide,)))
    page = gateway.submit_peek({"sub": "reader"}, None, 100).result()
    assert (len(page.deltas), page.has_more) == (4, True)
    rest = gateway.submit_peek({"sub": "reader"}, page.cursor, 100).result()
    assert (len(rest.deltas), rest.has_more) == (2, False)
    engine.close()
