"""A process remembers a bounded number of clients, those that are furthest behind first."""

from __future__ import annotations

from gateway import client_tracker
from gateway.client_tracker import ClientTracker, GatewayLag
from gateway.tracked_client import ConnectedClient
from lakesync.engine.inspection.lag import Unsent
from lakesync.engine.subscribers import Subscriber, SubscriptionState
from lakesync.model.types import RowDelta, SyncPage, SyncPull

ARRIVALS = (("main", 9 << 16),)


class Clock:
    """A clock in milliseconds."""

    now = 5000

    def __call__(self) -> int:
        return self.now


def followed(
    client_id: str, cursor: int, *, has_pending: bool = False, has_more: bool = False
) -> dict[str, ConnectedClient]:
    return {
        client_id: ConnectedClient(
            Subscriber(client_id, {}, state=SubscriptionState(cursor, limit=100, has_more=has_more)), has_pending
        )
    }


def pulled(
    seen: ClientTracker,
    client_id: str,
    cursor: int,
    *,
    gateway: str = "gw",
    has_more: bool = False,
    since: int = 0,
    brings: bool = False,
    source: str | None = None,
) -> None:
    deltas = (RowDelta("INSERT", "todos", "t1", "ann", (), 1, "d"),) if brings else ()
    page = SyncPage(deltas, cursor, has_more)
    seen.record_pull(gateway, SyncPull(client_id, since, source=source), page, {"sub": client_id}, knows_resync=True)


def look(
    seen: ClientTracker, found: dict[str, int | None], connected: dict[str, ConnectedClient] | None = None
) -> set[str]:
    """Check all clients that are due, and find this arrival for each; return those that were due."""
    there = connected or {}
    due = seen.checks_due("gw", ARRIVALS, there)
    for each in due:
        since = found.get(each.query.client_id, 0)
        seen.record_check("gw", ARRIVALS, there, each, None if since is None else Unsent(since))
    return {each.query.client_id for each in due}


def behind(seen: ClientTracker, client_id: str, connected: dict[str, ConnectedClient] | None = None) -> int | None:
    status = seen.status("gw", client_id, connected or {})
    assert status is not None
    return status.behind_ms


def test_the_client_that_is_furthest_behind_is_listed_first():
    seen = ClientTracker(Clock())
    pulled(seen, "quick", 9 << 16)
    pulled(seen, "slow", 3 << 16, has_more=True)
    seen.record_push("gw", "mute")
    pulled(seen, "elsewhere", 1 << 16, gateway="other")
    assert look(seen, {"mute": None, "slow": 4000 << 16}) == {"mute", "slow", "quick"}
    statuses = seen.statuses("gw", {}, 10)
    assert [each.client_id for each in statuses] == ["mute", "slow", "quick"]
    assert [(each.cursor_ms, each.has_more) for each in statuses] == [(None, False), (3, True), (9, False)]
    assert [(each.behind_ms, each.unsent_since_ms) for each in statuses] == [(None, None), (1000, 4000), (0, None)]
    assert {each.seen_ms for each in statuses} == {each.offline_since_ms for each in statuses} == {5000}
    assert [each.client_id for each in seen.statuses("gw", {}, 1)] == ["mute"]
    assert seen.lags(lambda _: {}) == {"gw": GatewayLag(3, 1, 4000), "other": GatewayLag(1, 0, None)}


def test_a_broadcast_advances_the_cursor_of_a_client():
    seen = ClientTracker(Clock())
    pulled(seen, "a", 3 << 16, has_more=True)
    (status,) = seen.statuses("gw", followed("a", 7 << 16), 10)
    assert (status.cursor_ms, status.has_more, status.connected) == (7, False, True)
    (status,) = seen.statuses("gw", followed("a", 2 << 16), 10)
    assert (status.cursor_ms, status.has_more, status.connected) == (3, True, True)


def test_a_client_is_checked_again_after_a_page_or_a_commit():
    seen = ClientTracker(Clock())
    pulled(seen, "a", 3 << 16)
    assert look(seen, {"a": 2000 << 16}) == {"a"}
    assert look(seen, {}) == set()
    assert [each.query.before for each in seen.checks_due("gw", (("main", 10 << 16),), {})] == [Unsent(2000 << 16)]
    pulled(seen, "a", 9 << 16, since=3 << 16)
    assert [each.query.before for each in seen.checks_due("gw", ARRIVALS, {})] == [None]


def test_an_outdated_check_of_a_client_is_discarded():
    seen = ClientTracker(Clock())
    pulled(seen, "a", 3 << 16)
    (due,) = seen.checks_due("gw", ARRIVALS, {})
    pulled(seen, "a", 9 << 16, since=3 << 16)
    seen.record_check("gw", ARRIVALS, {}, due, Unsent(2000 << 16))
    assert behind(seen, "a") is None, "it was not checked yet"


def test_an_unfinished_scan_is_continued():
    seen = ClientTracker(Clock())
    pulled(seen, "a", 3 << 16)
    (due,) = seen.checks_due("gw", ARRIVALS, {})
    seen.record_check("gw", ARRIVALS, {}, due, Unsent(0, is_complete=False))
    assert [each.query.before for each in seen.checks_due("gw", ARRIVALS, {})] == [Unsent(0, is_complete=False)]


def test_a_connected_client_is_up_to_date_unless_changes_wait_for_it():
    seen = ClientTracker(Clock())
    pulled(seen, "a", 3 << 16)
    there = followed("a", 3 << 16)
    assert look(seen, {"a": 2000 << 16}, there) == set()
    assert behind(seen, "a", there) == 0
    for slow in (followed("a", 3 << 16, has_pending=True), followed("a", 3 << 16, has_more=True)):
        assert look(seen, {"a": 2000 << 16}, slow) == {"a"}
        assert behind(seen, "a", slow) == 3000


def test_after_a_disconnect_the_client_keeps_the_cursor_of_its_connection():
    clock = Clock()
    seen = ClientTracker(clock)
    pulled(seen, "a", 3 << 16)
    look(seen, {"a": 2000 << 16})
    clock.now = 60_000
    seen.record_disconnect("gw", followed("a", 30_000 << 16)["a"].subscriber)
    seen.record_disconnect("gw", followed("stranger", 30_000 << 16)["stranger"].subscriber)
    assert seen.status("gw", "stranger", {}) is None
    (status,) = seen.statuses("gw", {}, 10)
    assert (status.cursor_ms, status.offline_since_ms, status.pulled_ms) == (30_000, 60_000, 5000)
    assert seen.tracked_cursor("gw", "a", None).cursor == 30_000 << 16
    assert look(seen, {}) == {"a"}


def test_a_client_that_repeats_its_cursor_is_checked_from_that_cursor():
    seen = ClientTracker(Clock())
    for _ in range(3):
        pulled(seen, "a", 9 << 16, since=5 << 16, brings=True)
    assert seen.tracked_cursor("gw", "a", None).cursor == 5 << 16
    (status,) = seen.statuses("gw", {}, 10)
    assert status.repeats == 2
    pulled(seen, "a", 3 << 16, since=3 << 16, brings=True, source="jira")
    assert seen.tracked_cursor("gw", "a", None).cursor == 5 << 16, "a source has separate cursors"
    for _ in range(2):
        pulled(seen, "a", 9 << 16, since=9 << 16)
        (status,) = seen.statuses("gw", {}, 10)
        assert status.repeats == 0, "a client that has every row always sends the same cursor"


def test_the_client_that_was_not_seen_for_the_longest_time_is_forgotten(monkeypatch):
    monkeypatch.setattr(client_tracker, "MAX_CLIENTS", 3)
    seen = ClientTracker(Clock())
    for client in ("a", "b", "c", "a", "d", "e"):
        seen.record_push("gw", client)
    assert sorted(each.client_id for each in seen.statuses("gw", {}, 10)) == ["a", "d", "e"]


def test_gateways_are_checked_in_turn_and_forgotten_with_their_last_client(monkeypatch):
    monkeypatch.setattr(client_tracker, "MAX_CLIENTS", 3)
    seen = ClientTracker(Clock())
    for gateway in ("one", "two", "three"):
        seen.record_push(gateway, "a")
    seen.mark_checked("one")
    assert seen.gateways() == ["two", "three", "one"]
    seen.record_push("two", "b")
    assert seen.gateways() == ["two", "three"]
    seen.mark_checked("one")
    assert seen.statuses("one", {}, 10) == []
