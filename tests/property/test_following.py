"""W2: a page that is shared by many subscribers equals each one's own page; L4: its INSERTs meet no existing row."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from lakesync.engine import Engine, EngineLimits
from lakesync.engine.subscribers import Newcomer, SubscriberGroup, SubscriptionState
from lakesync.engine.subscriptions import scan, subscribe
from lakesync.feed.positions import Position
from lakesync.feed.pull import pull_page
from lakesync.feed.row_buckets import own_bucket
from lakesync.model import hlc
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store

RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "group", "op": "eq", "value": "jwt:group"}]}],
}
START = 1_700_000_000_000
PEOPLE = ("ann", "ben", "cat")
edits = st.lists(
    st.tuples(
        st.sampled_from(PEOPLE),
        st.sampled_from(["INSERT", "UPDATE", "UPDATE", "DELETE"]),
        st.sampled_from(["r1", "r2", "r3"]),
        st.dictionaries(st.sampled_from(["x", "y", "group"]), st.sampled_from(["a", "b"]), max_size=2),
        st.sampled_from([-5, 0, 5]),
    ),
    min_size=2,
    max_size=12,
)


def push(engine: Engine, now: int, edit: tuple[Any, ...]) -> None:
    name, op, row, values, skew = edit
    columns = () if op == "DELETE" else tuple(ColumnValue.of(column, value) for column, value in values.items())
    stamp = hlc.encode(now + skew, 0)
    identity = delta_id(client_id=name, hlc=stamp, table="notes", row_id=row, columns=columns)
    delta = RowDelta(op, "notes", row, name, columns, stamp, identity)
    engine.gateway("g").handle_push(SyncPush(name, (delta,)), {"sub": name, "group": "a"})


def ended(future: Future[Any]) -> Any:
    return future.result(120)


@pytest.mark.parametrize("filtered", [False, True])
@settings(deadline=None, max_examples=60)
@given(history=edits, follows_after=st.integers(0, 11), multi_connected=st.booleans())
def test_w2_a_shared_page_equals_the_page_of_each_subscriber(filtered, history, follows_after, multi_connected):
    now = START
    engine = Engine(open_store("memory://", lambda: now), lambda: now, EngineLimits(write_scope="any"))
    engine.open()
    try:
        gateway = engine.gateway("g")
        if filtered:
            gateway.set_rules(parse_rules(RULES))
        for edit in history[:follows_after]:
            now += 1
            push(engine, now, edit)
        claims = {name: {"sub": name, "group": "a"} for name in PEOPLE}
        since = ended(engine.store.read("g", lambda view: view.arrival))
        state = SubscriptionState(since, 100)
        newcomers = [Newcomer(name, claims[name], state) for name in PEOPLE]
        begun = ended(engine.store.submit("g", lambda commit: subscribe(commit, newcomers, gateway.rules, now)))
        for edit in history[follows_after:]:
            now += 1
            push(engine, now, edit)
        access = ended(engine.store.read("g", lambda view: gateway.rules.access(view, claims["ann"])))
        state = SubscriptionState(since, 100, access=access, subscription=begun[0].subscription)

        def compare(view):
            with_own_changes = frozenset(name for name in PEOPLE if view.changed_after((own_bucket(name),), since))
            group = SubscriberGroup(
                state, frozenset(PEOPLE), with_own_changes, frozenset({"ben"} if multi_connected else ())
            )
            (found,) = scan(view, [group], gateway.rules)
            keys = access.keys
            at = Position(
                since,
                since,
                view.arrival,
                resync=False,
                base_scope=0,
                old_keys=keys,
                new_keys=keys,
                sent={},
                sent_up_to=0,
            )
            at = at._replace(no_retry=True)
            alone = {name: tuple(pull_page(view, name, at, access, 100).deltas) for name in PEOPLE}
            return found, alone

        found, alone = ended(engine.store.read("g", compare))
        assert not found.needs_pull
        for name, wanted in alone.items():
            page = found.page_of(name)
            deltas = page.deltas if page is not None else ()
            if name == "ben" and multi_connected:
                surely = {delta.row_id for delta in deltas if delta.op == "DELETE"}
                assert all(delta.row_id in surely for delta in deltas if delta.op == "INSERT")
                assert {delta.row_id for delta in wanted} <= {delta.row_id for delta in deltas}
            else:
                assert deltas == wanted, name
    finally:
        engine.close()


def ways_of_reading(name):
    """Return the clients of a group and those with own changes: alone, in a shared page, and beside the shared page."""
    shared = frozenset({name, "zoe"})
    return [(frozenset({name}), frozenset()), (shared, frozenset()), (shared, frozenset({name}))]


@pytest.mark.parametrize("ours", [False, True])
def test_l4_a_deleted_row_that_returns_is_not_broadcast_as_a_plain_insert(ours):
    """The stock client drops a DELETE that arrives while it applies another page, and skips one for a later edit."""
    now = START
    engine = Engine(open_store("memory://", lambda: now), lambda: now, EngineLimits(write_scope="any"))
    engine.open()
    try:
        gateway = engine.gateway("g")
        push(engine, now, ("ann", "INSERT", "r1", {"x": "a"}, 0))
        push(engine, now, ("ann", "DELETE", "r1", {}, 1))
        since = ended(engine.store.read("g", lambda view: view.arrival))
        newcomer = ("ben", {"sub": "ben", "group": "a"}, SubscriptionState(since, 100, knows_resync=ours))
        (state,) = ended(engine.store.submit("g", lambda commit: subscribe(commit, [newcomer], gateway.rules, now)))
        access = ended(engine.store.read("g", lambda view: gateway.rules.access(view, newcomer[1])))
        push(engine, now, ("cat", "UPDATE", "r1", {"y": "b"}, 2))
        push(engine, now, ("cat", "INSERT", "r2", {"y": "b"}, 2))
        for clients, with_own_changes in ways_of_reading("ben"):
            group = SubscriberGroup(replace(state, access=access), clients, with_own_changes, frozenset())
            (found,) = ended(engine.store.read("g", lambda view, group=group: scan(view, [group], gateway.rules)))
            if with_own_changes:
                assert "ben" in found.own_pages
            page = found.page_of("ben")
            operations = [(delta.row_id, delta.op) for delta in page.deltas]
            assert operations == [*([] if ours else [("r1", "DELETE")]), ("r1", "INSERT"), ("r2", "INSERT")]
    finally:
        engine.close()


CROWD = [f"p{number}" for number in range(9)]
"""More clients than a row stores writers."""


@pytest.mark.parametrize(
    ("before", "own", "after", "operations"),
    [
        ([], ("INSERT", {"group": "a"}), ("UPDATE", {"group": "b"}), ["DELETE"]),
        ([], ("INSERT", {"group": "a"}), ("DELETE", {}), ["DELETE"]),
        ([], ("INSERT", {"group": "a"}), ("UPDATE", {"y": "b"}), ["DELETE", "INSERT"]),
        ([("DELETE", {}), ("INSERT", {"group": "a"})], ("DELETE", {}), ("UPDATE", {"y": "b"}), ["DELETE", "INSERT"]),
    ],
    ids=["it is hidden", "it is deleted", "it stays", "its writer has deleted its own"],
)
def test_w2_a_row_with_many_writers_is_still_sent_to_a_writer_that_it_no_longer_stores(before, own, after, operations):
    now = START
    engine = Engine(open_store("memory://", lambda: now), lambda: now, EngineLimits(write_scope="any"))
    engine.open()
    try:
        gateway = engine.gateway("g")
        gateway.set_rules(parse_rules(RULES))
        for place, (op, values) in enumerate(before):
            push(engine, now, ("ben", op, "r1", values, place))
        since = ended(engine.store.read("g", lambda view: view.arrival))
        newcomer = ("ann", {"sub": "ann", "group": "a"}, SubscriptionState(since, 100))
        (state,) = ended(engine.store.submit("g", lambda commit: subscribe(commit, [newcomer], gateway.rules, now)))
        access = ended(engine.store.read("g", lambda view: gateway.rules.access(view, newcomer[1])))
        push(engine, now, ("ann", own[0], "r1", own[1], -9 if before else 2))
        for place, name in enumerate(CROWD):
            push(engine, now, (name, "UPDATE", "r1", {"x": "a"}, 3 + place))
        push(engine, now, ("ben", after[0], "r1", after[1], 99))
        for clients, with_own_changes in ways_of_reading("ann"):
            group = SubscriberGroup(replace(state, access=access), clients, with_own_changes, frozenset())
            (found,) = ended(engine.store.read("g", lambda view, group=group: scan(view, [group], gateway.rules)))
            if with_own_changes:
                assert "ann" in found.own_pages
            page = found.page_of("ann")
            ops = [delta.op for delta in (page.deltas if page is not None else ())]
            assert [op for op in ops if op != "UPDATE"] == operations
    finally:
        engine.close()


@pytest.mark.parametrize("restarted", [False, True], ids=["in memory", "in the file"])
def test_l7_a_row_that_becomes_hidden_is_deleted_at_a_writer_that_it_no_longer_stores(tmp_path, restarted):
    """A range of the feed that is read from the file gives the same result as the scan of rows in memory."""
    engine = opened(tmp_path)
    engine.gateway("g").set_rules(parse_rules(RULES))
    pull = SyncPull("ann", 0, 100)
    claims = {"sub": "ann", "group": "a"}
    push(engine, START, ("ben", "INSERT", "r0", {"group": "a"}, 0))
    since = engine.gateway("g").handle_pull(pull, claims).server_hlc
    push(engine, START, ("ann", "INSERT", "r1", {"group": "a"}, 1))
    for place, name in enumerate(CROWD):
        push(engine, START, (name, "UPDATE", "r1", {"x": "a"}, 3 + place))
    push(engine, START, (CROWD[0], "UPDATE", "r1", {"group": "b"}, 99))
    if restarted:
        engine.close()
        engine = opened(tmp_path)
    try:
        page = engine.gateway("g").handle_pull(msgspec.structs.replace(pull, since_hlc=since), claims)
        assert [(delta.op, delta.row_id) for delta in page.deltas] == [("DELETE", "r1")]
    finally:
        engine.close()


def opened(folder):
    engine = Engine(open_store(f"sqlite://{folder}", lambda: START), lambda: START, EngineLimits(write_scope="any"))
    engine.open()
    return engine
