"""Concurrent requests of one client, in the orders that can affect each other."""

from __future__ import annotations

import shutil
from functools import partial
from threading import Event

import pytest

from lakesync.engine.futures import run
from lakesync.engine.page_reading import PullRequest
from lakesync.engine.pushing import PushRequest
from lakesync.model.errors import ValidationError
from lakesync.model.types import SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging.sqlite import group
from tests.conformance.book import make_delta
from tests.conformance.power_cut import copy_at_once, copy_in_owner
from tests.integration.embedded.embedded_support import gateway_over

RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
A, B = ({"sub": "ann", "team": team} for team in "ab")


@pytest.fixture
def gateway(clock):
    with gateway_over(clock) as gateway:
        gateway.set_rules(parse_rules(RULES))
        yield gateway


def push(client, hlc, row, team):
    return SyncPush(client, (make_delta(client, hlc, row, table="notes", team=team),))


def pull(gateway, claims, since):
    return gateway.submit_pull(SyncPull("ann", since, 100), claims).result(20).decoded()


class Client:
    """Rows and a cursor, changed as plain SQL does."""

    def __init__(self, gateway, *claims):
        self.gateway = gateway
        self.rows = set()
        self.cursor = 0
        for each in claims:
            self.pull(each)

    def pull(self, claims):
        self.take(self.gateway.submit_pull(SyncPull("ann", self.cursor, 100), claims).result(20).decoded())

    def take(self, page):
        for delta in page.deltas:
            if delta.op == "DELETE":
                self.rows.discard(delta.row_id)
            elif delta.op == "INSERT":
                assert delta.row_id not in self.rows, f"{delta.row_id} comes twice"
                self.rows.add(delta.row_id)
        self.cursor = page.server_hlc

    def push(self, hlc, row, team, claims, *, known=True):
        """Push; return the future. The row is in the database immediately."""
        self.rows.add(row)
        cursor = self.cursor if known else None
        return self.gateway.submit_push(partial(PushRequest, push("ann", hlc, row, team), claims, known_cursor=cursor))


@pytest.fixture
def ann(gateway):
    """A client of A that wrote rows and has pulled everything."""
    gateway.handle_push(push("ben", 1, "r-a", "a"))
    gateway.handle_push(push("ben", 2, "r-b", "b"))
    ann = Client(gateway, A)
    ann.cursor = ann.push(3, "r-1", "a", A).result(20).server_hlc
    ann.pull(A)
    return ann


def while_pulling(ann, claims, request):
    """Return a pull's page, and the answer to a request served between the page's read and its commit.

    The store's thread reads the page in the round in which the request is submitted, and commits it after the request.
    """
    made, reading = [], Event()
    blocked = ann.gateway._store.submit("shop", lambda _: reading.wait(20))
    ann.gateway._store.read("shop", lambda _: made.append(request()))
    page = ann.gateway.submit_pull(SyncPull("ann", ann.cursor, 100), claims)
    reading.set()
    blocked.result(20)
    page = page.result(20).decoded()
    return page, made[0].result(20)


@pytest.mark.parametrize("then", [A, B], ids=["before", "new"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_push_under_earlier_claims_crosses_a_pull_under_new_ones(ann, then, lost):
    page, pushed = while_pulling(ann, B, lambda: ann.push(4, "r-2", "a", A))
    ann.cursor = pushed.server_hlc
    if not lost:
        ann.take(page)
    ann.pull(then)
    ann.pull(then)
    assert ann.rows == ({"r-a", "r-1", "r-2"} if then is A else {"r-b"})


def test_a_pull_repeated_before_its_page_is_stored_gets_the_newer_rows(gateway, ann):
    request = PullRequest(SyncPull("ann", ann.cursor, 100), B, knows_resync=False, confirmed=True, now_ms=1)
    reading = gateway._store.read("shop", lambda view: gateway.sources.read_page(view, request))
    reading.result(20)
    gateway.handle_push(push("ben", 4, "r-3", "b"))
    pull(gateway, B, ann.cursor)  # this page begins the scope of B
    ann.take(run(gateway._record_page(request, reading)).result(20))
    ann.pull(B)
    assert ann.rows == {"r-b", "r-3"}


@pytest.mark.parametrize("reindexing", [False, True])
def test_an_empty_page_with_another_token_does_not_confirm_the_page_before_it(gateway, monkeypatch, reindexing):
    fields = [{"column": name, "op": "in", "value": f"jwt:{name}s"} for name in ("team", "kind")]
    buckets = [{"name": "mine", "tables": [], "filters": fields}]
    gateway.set_rules(parse_rules({"version": 1, "buckets": buckets}))
    gateway.handle_push(SyncPush("ben", (make_delta("ben", 1, "r-b", table="notes", team="b", kind="q"),)))
    everything = {"sub": "ann", "teams": ["a", "b"], "kinds": ["p", "q"]}
    ann = Client(gateway, everything, {**everything, "teams": ["b"], "kinds": ["p"]})  # the row is shown, then hidden
    assert ann.rows == set()
    before, narrow = ann.cursor, {**everything, "kinds": ["p"]}
    with monkeypatch.context() as held:  # the reindex has not ended before the first late pull
        held.setattr(gateway, "continue_reindex", lambda: None)
        held.setattr(gateway._reindexer, "start", lambda *_: None)
        if reindexing:
            buckets = [*buckets, {"name": "more", "tables": [], "filters": [{**fields[0], "value": "jwt:none"}]}]
            gateway.set_rules(parse_rules({"version": 2, "buckets": buckets}))
        ann.pull(everything)
        assert ann.rows == {"r-b"}
        assert pull(gateway, narrow, before).deltas == ()  # these responses are lost
    gateway.continue_reindex()
    assert pull(gateway, narrow, before).deltas == ()
    ann.cursor = ann.push(4, "r-1", "a", everything, known=False).result(20).server_hlc
    ann.pull(everything)
    assert ann.rows == {"r-b"}  # no rule shows the row without a kind


@pytest.mark.parametrize("after", ["a late pull", "a push"])
def test_a_client_that_polls_and_has_every_row_is_recorded_at_most_once(gateway, clock, after):
    filters = [{"column": "team", "op": "in", "value": "jwt:teams"}]
    gateway.set_rules(parse_rules({"version": 1, "buckets": [{"name": "mine", "tables": [], "filters": filters}]}))
    mine = {"sub": "ann", "teams": ["a"]}
    gateway.handle_push(push("ben", 1, "r-a", "a"))
    gateway.handle_push(push("ben", 2, "r-b", "b"))
    ann = Client(gateway, mine)
    if after == "a late pull":
        assert pull(gateway, {**mine, "teams": ["a", "b"]}, ann.cursor).deltas  # this response is lost
    else:
        gateway.handle_push(push("ben", 3, "r-a", "a"))
        ann.pull(mine)
        ann.cursor = ann.push(4, "r-a", "a", mine, known=False).result(20).server_hlc
    recorded = []
    for _ in range(5):  # a stock client keeps its cursor if a page is empty
        clock.now_ms += 1000
        assert pull(gateway, mine, ann.cursor).deltas == ()
        recorded.append(gateway._store.read("shop", lambda view: view.client("ann")).result(20).last_seen_ms)
    assert len(set(recorded)) == 1


def test_a_request_with_claims_that_cannot_be_stored_fails_alone(clock):
    above = {"name": "above", "tables": [], "filters": [{"column": "n", "op": "gt", "value": "jwt:n"}]}
    broken, fine = {"sub": "ann", "n": "\ud800"}, {"sub": "ben", "n": "1"}
    with gateway_over(clock) as gateway:
        gateway.set_rules(parse_rules({"version": 1, "buckets": [above]}))
        begun, proceed = Event(), Event()
        gateway._store.submit("shop", lambda _: (begun.set(), proceed.wait(60)))
        assert begun.wait(60)
        pushed = [
            gateway.submit_push(
                partial(
                    PushRequest, SyncPush(claims["sub"], (make_delta(claims["sub"], 1, claims["sub"], n="2"),)), claims
                )
            )
            for claims in (fine, broken)
        ]
        pulled = [gateway.submit_pull(SyncPull(claims["sub"], 0), claims) for claims in (fine, broken)]
        proceed.set()
        assert pushed[0].result(60).accepted == 1
        pulled[0].result(60)
        for each in (pushed[1], pulled[1]):
            with pytest.raises(ValidationError, match="lone surrogate"):
                each.result(60)


def test_a_late_push_of_a_lost_database_survives_a_crash_before_its_rows_are_written(clock, tmp_path, monkeypatch):
    """The client lacks the writes of that push. After a replay of the log, it must still be sent them."""
    live, copy = (f"sqlite://{tmp_path / name}" for name in ("live", "copy"))
    with gateway_over(clock, staging=live) as gateway:
        gateway.set_rules(parse_rules(RULES))
        gateway.handle_push(push("ben", 1, "r-a", "a"))
        ann = Client(gateway, A)  # it lost its database after it had sent the push below, and pulled again
        copied = []

        def cut_power(name):
            if name == "staging.after_commit":
                copied.append(copy_in_owner(gateway._store, tmp_path / "copy"))

        with monkeypatch.context() as patched:
            patched.setattr(group, "crash_point", cut_power)
            gateway.submit_push(partial(PushRequest, push("ann", 2, "r-late", "a"), A, known_cursor=0)).result(20)
        assert copied
    with gateway_over(clock, staging=copy) as ann.gateway:
        ann.pull(A)
        assert ann.rows == {"r-a", "r-late"}


def test_late_pushes_of_a_lost_database_survive_a_power_cut_that_loses_their_rows(clock, tmp_path):
    """The file of the rows is synced to the disk later than the log, so a replay may cross several pushes."""
    live, copy = (f"sqlite://{tmp_path / name}" for name in ("live", "copy"))
    with gateway_over(clock, staging=live) as gateway:
        gateway.set_rules(parse_rules(RULES))
        gateway.handle_push(push("ben", 1, "r-a", "a"))
        ann = Client(gateway, A)  # it lost its database after it had sent the pushes below, and pulled again
        copy_at_once(gateway._store, tmp_path / "synced")
        for number, row in enumerate(("r-late", "r-later"), 2):
            gateway.submit_push(partial(PushRequest, push("ann", number, row, "a"), A, known_cursor=0)).result(20)
        copy_at_once(gateway._store, tmp_path / "copy")
    for name in ("state.db", "state.db-wal"):
        shutil.copy(tmp_path / "synced" / name, tmp_path / "copy" / name)
    with gateway_over(clock, staging=copy) as ann.gateway:
        ann.pull(A)
        assert ann.rows == {"r-a", "r-late", "r-later"}
