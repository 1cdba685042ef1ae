"""What a process remembers of clients is bounded and puts those first that are furthest behind."""

from __future__ import annotations

from gateway import clients
from gateway.clients import SeenClients
from lakesync.engine.following import Follower, Standing
from lakesync.types import RowDelta, SyncPage, SyncPull


def follower(client_id: str, cursor: int) -> Follower:
    return Follower(client_id, {}, standing=Standing(cursor, limit=100))


def pulled(
    seen: SeenClients,
    gateway: str,
    client_id: str,
    cursor: int,
    *,
    has_more: bool = False,
    since: int = 0,
    brings: bool = False,
    source: str | None = None,
    asked_ms: int | None = None,
) -> None:
    deltas = (RowDelta("INSERT", "todos", "t1", "ann", (), 1, "d"),) if brings else ()
    seen.pulled(
        gateway,
        SyncPull(client_id, since, source=source),
        SyncPage(deltas, cursor, has_more),
        asked_ms=seen.now_ms() if asked_ms is None else asked_ms,
        knows_resync=True,
    )


def test_the_one_that_is_furthest_behind_comes_first():
    seen = SeenClients(lambda: 5.0)
    pulled(seen, "gw", "quick", 9 << 16, has_more=False)
    pulled(seen, "gw", "slow", 3 << 16, has_more=True)
    seen.pushed("gw", "mute")
    pulled(seen, "other", "elsewhere", 1 << 16, has_more=False)
    told = seen.standing("gw", 9 << 16, [], 10)
    assert [each.client_id for each in told] == ["mute", "slow", "quick"]
    assert [(each.cursor_ms, each.has_more) for each in told] == [(None, False), (3, True), (9, False)]
    assert {each.seen_ms for each in told} == {5000}
    assert [each.client_id for each in seen.standing("gw", 9 << 16, [], 1)] == ["mute"]


def test_a_broadcast_takes_a_client_further():
    seen = SeenClients()
    pulled(seen, "gw", "a", 3 << 16, has_more=True)
    (told,) = seen.standing("gw", 9 << 16, [follower("a", 7 << 16)], 10)
    assert (told.cursor_ms, told.has_more, told.connected) == (7, False, True)
    (told,) = seen.standing("gw", 9 << 16, [follower("a", 2 << 16)], 10)
    assert (told.cursor_ms, told.has_more, told.connected) == (3, True, True)


def behind(seen: SeenClients, newest: int, *followers: Follower) -> int | None:
    (told,) = seen.standing("gw", newest << 16, followers, 10)
    return told.behind_ms


def test_how_long_a_client_has_lacked_something_grows_until_it_comes():
    now = 1.0
    seen = SeenClients(lambda: now)
    seen.pushed("gw", "a")
    assert behind(seen, 900) is None, "it never pulled"
    pulled(seen, "gw", "a", 900 << 16, has_more=False)
    assert behind(seen, 900) == 0
    now = 3.0
    assert behind(seen, 1500) == 2000, "since its pull, which was after its cursor's commit"
    now = 60.0
    assert behind(seen, 1500) == 59_000, "though nothing was committed since"
    pulled(seen, "gw", "a", 1200 << 16, has_more=True)
    assert behind(seen, 1500) == 58_800, "since its cursor, for more was waiting"
    pulled(seen, "gw", "a", 1200 << 16, has_more=False)
    assert behind(seen, 1500) == 0, "what came since does not concern it, and its cursor stays"


def test_what_is_committed_while_a_pull_is_answered_is_lacking():
    seen = SeenClients(lambda: 60.0)
    pulled(seen, "gw", "a", 900 << 16, asked_ms=2000)
    assert behind(seen, 2001) == 58_000


def test_who_is_connected_is_told_at_once_of_what_concerns_it():
    seen = SeenClients(lambda: 60.0)
    pulled(seen, "gw", "a", 900 << 16, has_more=False)
    assert behind(seen, 59_990, follower("a", 900 << 16)) == 0


def test_who_was_connected_until_lately_lacks_what_came_since():
    now = 2.0
    seen = SeenClients(lambda: now)
    pulled(seen, "gw", "a", 900 << 16, has_more=False)
    now = 60.0
    seen.left("gw", follower("a", 30_000 << 16), owed=False)
    now = 62.0
    (told,) = seen.standing("gw", 59_000 << 16, [], 10)
    assert (told.cursor_ms, told.behind_ms, told.connected) == (30_000, 0, False)
    assert behind(seen, 61_000) == 2000


def test_what_was_on_its_way_when_a_connection_ended_is_lacking():
    now = 2.0
    seen = SeenClients(lambda: now)
    pulled(seen, "gw", "a", 900 << 16, has_more=False)
    now = 60.0
    seen.left("gw", follower("a", 30_000 << 16), owed=True)
    assert behind(seen, 59_000) == 30_000
    seen.left("gw", follower("stranger", 30_000 << 16), owed=False)
    assert behind(seen, 59_000) == 30_000, "who is not remembered stays so"


def test_a_client_that_cannot_take_its_page_lacks_it_however_often_it_is_sent():
    now = 10.0
    seen = SeenClients(lambda: now)
    for _ in range(3):
        pulled(seen, "gw", "a", 9_000 << 16, since=5_000 << 16, brings=True)
        now += 10.0
    (told,) = seen.standing("gw", 9_000 << 16, [], 10)
    assert (told.repeats, told.behind_ms) == (2, 30_000), "since it was first sent what it did not take"
    pulled(seen, "gw", "a", 3_000 << 16, since=3_000 << 16, brings=True, source="jira")
    assert behind(seen, 9_000) == 30_000, "a source has cursors of its own"
    pulled(seen, "gw", "a", 9_000 << 16, since=9_000 << 16)
    (told,) = seen.standing("gw", 9_000 << 16, [], 10)
    assert (told.repeats, told.behind_ms) == (0, 0)
    pulled(seen, "gw", "a", 9_000 << 16, since=9_000 << 16)
    (told,) = seen.standing("gw", 9_000 << 16, [], 10)
    assert told.repeats == 0, "whoever lacks nothing asks with one cursor all the time"


def test_the_one_that_was_not_seen_for_the_longest_time_is_forgotten(monkeypatch):
    monkeypatch.setattr(clients, "REMEMBERED_CLIENTS", 3)
    seen = SeenClients()
    for client in ("a", "b", "c", "a", "d", "e"):
        seen.pushed("gw", client)
    assert sorted(each.client_id for each in seen.standing("gw", 9 << 16, [], 10)) == ["a", "d", "e"]
