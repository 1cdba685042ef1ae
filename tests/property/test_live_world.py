"""W2: with any concurrent requests, WebSocket clients are sent their missing changes, and end with their rows.

`live_soak.py` beside the integration tests does the same over real connections.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pytest
import structlog
from hypothesis import given, settings

from lakesync.model.types import SyncPage, SyncPull
from lakesync.rules.model import parse_rules
from lakesync.staging.shards import ShardMap
from tests.integration.live.live_model import merged
from tests.property.feed_model import Row
from tests.property.live_client import LiveClient
from tests.property.live_world import Crowd, Places, UnrestError, run

RULES = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "group", "op": "eq", "value": "jwt:group"}]}],
    }
)
PEOPLE = (("ann", "a"), ("ben", "b"), ("cat", "a"))

values = st.fixed_dictionaries({"x": st.integers(0, 2)}, optional={"group": st.sampled_from(["a", "b"])})
rows = st.tuples(st.sampled_from(PEOPLE), st.integers(0, 1)).map(lambda each: f"{each[0][0]}-{each[1]}")
ops = st.sampled_from(["INSERT", "UPDATE", "UPDATE", "DELETE"])
steps = st.one_of(
    st.tuples(st.just("edit"), ops, rows, values),
    st.tuples(st.just("edit"), ops, rows, values),
    st.sampled_from([("pull",), ("push",), ("push",), ("cut",), ("reload",)]),
    st.sampled_from([("pull",), ("push",), ("cut",), ("get",), ("post",), ("stray",)]),
)
order = st.lists(st.tuples(st.integers(-1, 40), st.integers(0, 3)), max_size=200)


TABLES = {f"{name}-1": "orders" for name, _ in PEOPLE}
"""The tables of every second row; with shards, a separate table."""


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    opened = Places()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def sharded() -> Iterator[Places]:
    opened = Places(ShardMap({"orders": "shard-orders"}, "shard-default"))
    yield opened
    opened.close()


async def end(crowd: Crowd, filtered: bool) -> None:
    """Push everything; check the rows of connected clients, and then, after a pull, of all clients."""

    def wanted(client: LiveClient) -> dict[str, Row]:
        made = merged(delta for each in crowd.clients for delta in each.pushed.values())
        return {
            row_id: row for row_id, row in made.items() if not filtered or row.get("group") == client.claims["group"]
        }

    for client in crowd.clients:
        for _ in range(20):
            client.script.extend([("push",)] if client.outbox else [])
            await crowd.play()
        assert not client.outbox
    for client in crowd.clients:
        if client.frames is not None and client.has_pulled:
            assert client.rows == wanted(client), f"{client.name} was not sent every change"
    for client in crowd.clients:
        await caught_up(crowd, client)
        assert client.rows == wanted(client), client.name


async def caught_up(crowd: Crowd, client: LiveClient) -> None:
    """Pull on a new connection until nothing is left."""
    client.cut()
    for _ in range(100):
        client.last = None
        client.script.append(("pull",))
        await crowd.play()
        if client.last is not None and not client.last.deltas and not client.last.has_more:
            client.cut()
            return
    raise AssertionError("paging does not end")


def play_out(
    places: Places,
    scripts: list[list[tuple[Any, ...]]],
    order: Sequence[tuple[int, int]],
    processes: int,
    *,
    filtered: bool,
    loose: bool,
    away: bool,
    most: int = 5000,
) -> None:
    """Play a history, and compare every client with the model at the end.

    Raises:
        UnrestError: events are left after the permitted number, `most`.
    """
    gateway = places.gateway()
    if filtered:
        gateway.set_rules(RULES)
    clients = [LiveClient(name, group) for name, group in PEOPLE[: len(scripts)]]
    for client, script in zip(clients, scripts, strict=True):
        client.script.extend(script)
        client.tables = TABLES

    async def play() -> None:
        crowd = places.crowd(gateway, clients, processes, loose=loose, away=away)
        try:
            await crowd.play(order, most)
            await end(crowd, filtered)
        finally:
            await crowd.close()

    run(play())


histories = {
    "scripts": st.lists(st.lists(steps, max_size=14), min_size=2, max_size=3),
    "order": order,
    "filtered": st.booleans(),
    "loose": st.booleans(),
    "away": st.booleans(),
    "processes": st.integers(1, 2),
}


@settings(deadline=None, max_examples=20)
@given(**histories)
def test_w2_in_any_order_every_client_is_sent_what_it_lacks(places: Places, **history: Any) -> None:
    play_out(places, **history)


@settings(deadline=None, max_examples=15)
@given(**histories)
def test_w2_over_shards_every_client_is_sent_what_it_lacks(sharded: Places, **history: Any) -> None:
    play_out(sharded, **history)


@settings(deadline=None, max_examples=15)
@given(**histories, most=st.integers(0, 60))
def test_w1_shutdown_closes_every_connection_in_any_state(places: Places, most: int, **history: Any) -> None:
    with suppress(UnrestError):
        play_out(places, **history, most=most)


def test_w1_a_connection_that_opens_during_shutdown_is_closed(places: Places) -> None:
    ann = LiveClient("ann", "a")
    ann.script.append(("pull",))

    async def play() -> None:
        crowd = places.crowd(places.gateway(), (ann,))
        crowd.happen("connect ann 0")
        await crowd.close()
        assert ann.frames is not None
        assert ann.frames.reason.startswith("1001")

    run(play())


@pytest.fixture(params=["sqlite", "postgres"])
def crowd(request: pytest.FixtureRequest, places: Places) -> Crowd:
    """Ann, whose clock is behind, and Ben."""
    clients = [LiveClient("ann", "a", clock=0), LiveClient("ben", "a", clock=100)]
    return places.crowd(places.gateway(), clients, loose=request.param == "postgres")


def test_l5_a_value_that_won_over_a_push_reaches_its_client_during_broadcasts_to_others(crowd: Crowd) -> None:
    async def play() -> None:
        ann, ben = crowd.clients
        ann.script.append(("pull",))
        ben.script.extend([("pull",), ("edit", "INSERT", "r", {"x": 5}), ("push",)])
        await crowd.follow("…")
        ben.script.extend([("edit", "INSERT", "q", {"x": 1}), ("push",)])
        await crowd.follow("edit ben", "push ben", "arrive ben", "run push", "tell push", "notice 0")
        ann.script.extend([("edit", "UPDATE", "r", {"x": 7}), ("push",)])
        await crowd.follow("edit ann", "push ann", "arrive ann", "run push", "tell push", "run scan", "tell scan", "…")
        assert ann.rows == ben.rows == {"r": {"x": 5}, "q": {"x": 1}}
        await crowd.close()

    run(play())


def test_a_value_that_won_over_a_push_reaches_its_client_after_an_outage_of_the_store(places: Places) -> None:
    ann, ben = LiveClient("ann", "a", clock=0), LiveClient("ben", "a", clock=100)

    async def play() -> None:
        crowd = places.crowd(places.gateway(), (ann, ben), away=True)
        ann.script.append(("pull",))
        ben.script.extend([("pull",), ("edit", "INSERT", "r", {"x": 5}), ("push",)])
        await crowd.follow("…")
        ann.script.extend([("edit", "UPDATE", "r", {"x": 7}), ("push",)])
        await crowd.follow("edit ann", "push ann", "arrive ann", "run push", "tell push", "notice 0", "lose scan")
        await crowd.play()
        assert ann.rows == ben.rows == {"r": {"x": 5}}
        await crowd.close()

    run(play())


def test_a_value_that_won_over_a_push_reaches_its_client_after_its_connection_was_full(places: Places) -> None:
    ann, ben = LiveClient("ann", "a", page=3, clock=0), LiveClient("ben", "a", batch=3, clock=100)

    async def play() -> None:
        crowd = places.crowd(places.gateway(), (ann, ben))
        ann.script.append(("pull",))
        ben.script.extend([("pull",), ("edit", "INSERT", "r", {"x": 5}), ("push",)])
        await crowd.follow("…")
        ben.script.extend([*(("edit", "INSERT", row, {"x": 1}) for row in ("q1", "q2", "q3")), ("push",)])
        await crowd.follow(*["edit ben"] * 3, "push ben", "arrive ben")
        ann.script.extend([("edit", "UPDATE", "r", {"x": 7}), ("push",)])
        await crowd.follow("edit ann", "push ann", "arrive ann", "run push", "run push", "tell push", "tell push")
        await crowd.follow("notice 0", "take ann", "take ben", *["run scan", "tell scan"] * 2)
        (line,) = [each.line for each in crowd._connected if each.client is ann]
        line.is_writable = False
        await crowd.follow("run page", "tell page", "run record_page", "tell record_page")
        line.is_writable = True
        line.on_writable()
        await crowd.play()
        assert ann.rows == ben.rows
        assert ann.rows["r"] == {"x": 5}
        await crowd.close()

    run(play())


def test_a_scan_from_before_a_push_is_not_sent_after_its_answer(places: Places) -> None:
    ann, ben = LiveClient("ann", "a", clock=200), LiveClient("ben", "a", clock=100)

    async def play() -> None:
        crowd = places.crowd(places.gateway(), (ann, ben), loose=True)
        ann.script.extend([("pull",), ("edit", "INSERT", "r", {"x": 5}), ("push",)])
        ben.script.append(("pull",))
        await crowd.follow("…")
        ben.script.extend([("edit", "DELETE", "r", {}), ("push",)])
        await crowd.follow("edit ben", "push ben", "arrive ben", "run push", "tell push", "notice 0", "run scan")
        ann.script.extend([("edit", "DELETE", "r", {}), ("push",), ("edit", "INSERT", "r", {"x": 6}), ("push",)])
        pushed = ("edit ann", "push ann", "arrive ann", "run push", "tell push", "take ann")
        await crowd.follow(*pushed, *pushed, "tell scan", "…")
        assert ann.rows == ben.rows == {"r": {"x": 6}}
        await crowd.close()

    run(play())


@pytest.mark.parametrize("late", ["run resolve_all", "run has_record", "run subscribe"])
def test_l4_a_first_write_before_the_subscription_is_known_is_not_sent_back(sharded: Places, late: str) -> None:
    ann = LiveClient("ann", "a")
    ann.tables = {"r": "orders"}

    async def play() -> None:
        crowd = sharded.crowd(sharded.gateway(), (ann,))
        ann.script.extend([("pull",), ("edit", "INSERT", "r", {"x": 1}), ("push",)])
        await crowd.follow("…", late, "…")
        assert ann.rows == {"r": {"x": 1}}
        assert not ann.outbox
        assert not ann.sent_ids
        await crowd.close()

    run(play())


def test_a_row_whose_delete_was_lost_with_its_connection_is_not_sent_as_a_plain_insert(places: Places) -> None:
    ann, ben = LiveClient("ann", "a"), LiveClient("ben", "a")

    async def play() -> None:
        crowd = places.crowd(places.gateway(), (ann, ben))
        ben.script.extend([("pull",), ("edit", "INSERT", "r", {"x": 1}), ("push",)])
        ann.script.append(("pull",))
        await crowd.follow("…")
        ben.script.extend([("edit", "DELETE", "r", {}), ("push",)])
        deleted = ("edit ben", "push ben", "arrive ben", "run push", "tell push", "notice 0", "run scan", "tell scan")
        await crowd.follow(*deleted)
        ann.script.extend([("edit", "INSERT", "mine", {"x": 1}), ("push",), ("cut",), ("push",), ("pull",)])
        await crowd.follow("edit ann", "push ann", "arrive ann", "run push", "tell push", "cut ann", "…")
        ben.script.extend([("edit", "INSERT", "r", {"x": 2}), ("push",)])
        await crowd.follow("…")
        assert ann.rows == ben.rows == {"r": {"x": 2}, "mine": {"x": 1}}
        await crowd.close()

    run(play())


@pytest.mark.parametrize(("loose", "lost"), [(False, False), (True, False), (True, True)])
def test_l4_rows_sent_over_http_are_not_broadcast_as_plain_inserts(places: Places, loose: bool, lost: bool) -> None:
    """One client on two transports: the gateway cannot know which rows it has from the other one."""
    gateway = places.gateway()
    ann, ben = LiveClient("ann", "a"), LiveClient("ben", "a")

    async def play() -> None:
        crowd = places.crowd(gateway, (ann, ben), loose=loose)
        ann.script.append(("pull",))
        ben.script.append(("pull",))
        await crowd.follow("…")
        ben.script.extend([("edit", "INSERT", "r", {"x": 1}), ("push",)])
        await crowd.follow("edit ben", "push ben", "arrive ben", "run push", "tell push")
        page = gateway.submit_pull(SyncPull("ann", ann.cursor, 10), ann.claims)
        while not page.done():
            event = next(event for event in crowd.store.events() if event.name.split()[1] in ("page", "record_page"))
            await crowd.follow(event.name)
        ann.hear(page.result())
        assert ann.rows == {"r": {"x": 1}}
        if lost:
            crowd.store.lose_notices(gateway.gateway_id)
        while event := next((event for event in crowd.store.events() if event.name.startswith("notice")), None):
            event.happen()  # changes in transit that no process has been notified of are not part of the promise
        await crowd.follow("…")
        assert ann.rows == ben.rows == {"r": {"x": 1}}
        await crowd.close()

    run(play())


def test_a_pull_with_other_claims_keeps_its_cursors_before_other_processes_are_notified_of_it(places: Places) -> None:
    """On Postgres, a scan may show the pull's commit before this process is notified of it."""
    gateway = places.gateway()
    gateway.set_rules(RULES)
    ann, ben = LiveClient("ann", "a"), LiveClient("ben", "a")
    other_claims = {**ann.claims, "group": "b"}

    async def play() -> None:
        crowd = places.crowd(gateway, (ann, ben), loose=True)

        async def pulled() -> SyncPage:
            page = gateway.submit_pull(SyncPull("ann", ann.cursor, 10), other_claims)
            await crowd.follow("run page", "tell page")
            if not page.done():
                await crowd.follow("run record_page", "tell record_page")
            return page.result()

        for client in crowd.clients:
            client.script.append(("pull",))
        await crowd.follow("…")
        ben.script.extend([("edit", "INSERT", "theirs", {"group": "b"}), ("edit", "INSERT", "r1", {"group": "a"})])
        ben.script.append(("push",))
        await crowd.follow(*["edit ben"] * 2, "push ben", "arrive ben", "run push", "tell push", "notice 0")
        await pulled()  # its answer is lost
        ben.script.extend([("edit", "INSERT", "r2", {"group": "a"}), ("push",)])
        await crowd.follow("edit ben", "take ben", "push ben", "arrive ben", "run push", "tell push")
        await crowd.follow("run scan", "tell scan", "…")
        assert ann.rows.keys() == {"r1", "r2"}
        for _ in range(5):
            ann.hear(await pulled())
        assert ann.rows.keys() == {"theirs"}
        await crowd.close()

    run(play())
