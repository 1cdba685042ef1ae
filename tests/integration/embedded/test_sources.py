"""Pulls from named sources: real adapters with rows, through the gateway's rules."""

from __future__ import annotations

import pytest

from lakesync.adapters import DeltaBatch, StoredDelta
from lakesync.adapters.backends.postgres import PostgresAdapter
from lakesync.engine.page_reading import PullRequest, unrecorded_cursor
from lakesync.engine.subscribers import Newcomer, SubscriberGroup, SubscriptionState
from lakesync.feed.pull import MAX_PAGE_BYTES
from lakesync.model.errors import AdapterError, NotFoundError, StagingUnavailableError
from lakesync.model.types import SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from tests.integration.embedded.embedded_support import KINDS, Author, gateway_over

MINE = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}


@pytest.fixture(params=list(KINDS))
def source(request, tmp_path):
    """Each kind of adapter in turn."""
    opened = KINDS[request.param](tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def gateway(clock, source):
    """A gateway with the source `reports` and a row in its own feed."""
    with gateway_over(clock) as opened:
        opened.register_source("reports", source)
        author = Author("writer", clock)
        author.push(opened, author.delta("own", {"x": 1}, table="own"))
        yield opened


class Writer:
    """Fills a source with batches."""

    def __init__(self, source, clock, client="etl"):
        self.source, self.author, self.clock, self.batches = source, Author(client, clock), clock, 0

    def put(self, *edits):
        """Write rows given as `(row, after)`; None deletes."""
        self.clock.advance(10)
        self.batches += 1
        deltas = [self.author.delta(row, after, table="reports") for row, after in edits]
        arrival = self.clock.now_ms << 16
        stored = tuple(StoredDelta("warehouse", arrival + 256 * n, delta) for n, delta in enumerate(deltas))
        self.source.insert_deltas(DeltaBatch(f"warehouse.main.1.{self.batches}-{self.batches}", "warehouse", stored))


@pytest.fixture
def writer(source, clock):
    """Fills the source."""
    return Writer(source, clock)


def operations(answer):
    """The operations of a page, in short form."""
    return [(delta.op, delta.row_id) for delta in answer.deltas]


def cursor_of(gateway, client="reader", claims=None):
    """The cursor of a client that has pulled the gateway's own feed."""
    return gateway.handle_pull(SyncPull(client, 0, 1000), claims or {"sub": client}).server_hlc


def pull(gateway, since, *, limit=100, client="reader", **claims):
    """Pull from the source."""
    return gateway.handle_pull(SyncPull(client, since, limit, "reports"), {"sub": client, **claims})


def test_rows_are_sent_as_delete_and_insert_and_the_cursor_does_not_advance(gateway, writer):
    writer.put(("r1", {"x": 1}), ("r2", {"x": 2}))
    writer.put(("r1", {"y": 5}), ("gone", {"x": 1}))
    writer.put(("gone", None))
    since = cursor_of(gateway)
    page = pull(gateway, since)
    assert operations(page) == [
        ("DELETE", "r2"),
        ("INSERT", "r2"),
        ("DELETE", "r1"),
        ("INSERT", "r1"),
        ("UPDATE", "r1"),
    ]
    assert since - 256 < page.server_hlc < since
    assert not page.has_more
    deleted, inserted = page.deltas[:2]
    assert deleted.hlc <= inserted.hlc, "an unsent edit of the client still wins"
    again = pull(gateway, page.server_hlc)
    assert (again.deltas, again.server_hlc, again.has_more) == ((), page.server_hlc, False)


def test_pages_of_a_source_are_contiguous(gateway, writer):
    for number in range(30):
        writer.put(*((f"r{number}-{n}", {"x": n}) for n in range(3)))
    since, seen = cursor_of(gateway), []
    first = since
    while True:
        page = pull(gateway, since, limit=7)
        assert page.server_hlc <= first
        assert len(page.deltas) <= 8, "at most one row above the limit"
        seen += [delta.row_id for delta in page.deltas if delta.op == "INSERT"]
        since = page.server_hlc
        if not page.has_more:
            break
    assert sorted(seen) == sorted(f"r{number}-{n}" for number in range(30) for n in range(3))
    writer.put(("r0-0", {"x": 9}), ("new", {"x": 1}))
    assert {row for _, row in operations(pull(gateway, since))} == {"r0-0", "new"}


def test_a_page_of_a_source_is_bounded_by_bytes_too(gateway, writer):
    writer.put(*((f"r{n}", {"u": "a" * (MAX_PAGE_BYTES * 2 // 3)}) for n in range(3)))
    first = pull(gateway, cursor_of(gateway))
    assert operations(first) == [("DELETE", "r0"), ("INSERT", "r0"), ("DELETE", "r1"), ("INSERT", "r1")]
    rest = pull(gateway, first.server_hlc)
    assert (operations(rest), first.has_more, rest.has_more) == ([("DELETE", "r2"), ("INSERT", "r2")], True, False)


def test_a_row_changed_between_pages_is_sent_at_its_latest_position(gateway, writer):
    for number in range(6):
        writer.put((f"r{number}", {"x": number}))
    since = cursor_of(gateway)
    page = pull(gateway, since, limit=2)
    assert operations(page) == [("DELETE", "r0"), ("INSERT", "r0")]
    writer.put(("r1", {"x": 100}))
    rest = pull(gateway, page.server_hlc, limit=100)
    assert [row for op, row in operations(rest) if op == "INSERT"] == ["r2", "r3", "r4", "r5", "r1"]


def test_a_lost_answer_is_sent_again(gateway, writer):
    writer.put(("r1", {"x": 1}))
    since = cursor_of(gateway)
    first = pull(gateway, since)
    assert operations(pull(gateway, since)) == operations(first), "the cursor shows that the page did not arrive"
    second = pull(gateway, since)
    writer.put(("r2", {"x": 2}))
    assert operations(pull(gateway, second.server_hlc)) == [("DELETE", "r2"), ("INSERT", "r2")]


def test_the_gateways_feed_accepts_the_cursor_of_a_source_page(gateway, writer, clock):
    writer.put(("r1", {"x": 1}))
    since = cursor_of(gateway)
    page = pull(gateway, since)
    other = Author("other", clock)
    other.push(gateway, other.delta("new", {"x": 2}, table="own"))
    own = gateway.handle_pull(SyncPull("reader", page.server_hlc))
    assert operations(own) == [("INSERT", "new")]
    assert own.server_hlc > since
    assert pull(gateway, own.server_hlc).deltas == (), "the feed's pull confirmed the page"


def test_an_unacknowledged_page_is_sent_again(gateway, writer):
    """Each of its answers may have been lost."""
    writer.put(("r1", {"x": 1}))
    since = cursor_of(gateway)
    pages = [pull(gateway, since) for _ in range(7)]
    assert all(operations(page) == [("DELETE", "r1"), ("INSERT", "r1")] for page in pages)
    assert pull(gateway, pages[-1].server_hlc).deltas == ()


def test_a_client_whose_pushes_hide_its_acknowledgements_repeats_its_pages_and_misses_none(gateway, writer, clock):
    """It makes progress and misses no page."""
    for number in range(3):
        writer.put((f"r{number}", {"x": number}))
    author, since, seen = Author("reader", clock), cursor_of(gateway), []
    for number in range(2 * 3 * 3):
        page = pull(gateway, since, limit=2)
        seen += [delta.row_id for delta in page.deltas if delta.op == "INSERT"]
        own = author.delta(f"own{number}", {"x": 1}, table="own")
        since = gateway.handle_push(SyncPush("reader", (own,))).server_hlc
    assert seen == [row for row in ("r0", "r1", "r2") for _ in range(3)] * 2
    page = pull(gateway, since, limit=2)
    assert operations(page) == [("DELETE", "r0"), ("INSERT", "r0")], "none of it is known to be received"
    rest = [pull(gateway, page.server_hlc, limit=2)]
    while rest[-1].deltas:
        rest.append(pull(gateway, rest[-1].server_hlc, limit=2))
    assert [delta.row_id for page in rest for delta in page.deltas if delta.op == "INSERT"] == ["r1", "r2"]


def test_a_client_without_a_cursor_repeats_its_pages(gateway, writer):
    for number in range(4):
        writer.put((f"r{number}", {"x": number}))
    rounds = [pull(gateway, 0, limit=4) for _ in range(4)]
    assert [page.server_hlc for page in rounds] == [0] * 4
    assert [[row for op, row in operations(page) if op == "INSERT"] for page in rounds] == [
        ["r0", "r1"],
        ["r2", "r3"],
    ] * 2
    assert [page.has_more for page in rounds] == [True, False] * 2


def test_a_connection_does_not_begin_a_source_again(gateway, writer, clock):
    for number in range(4):
        writer.put((f"r{number}", {"x": number}))
    claims = {"sub": "reader"}
    gateway.handle_push(SyncPush("reader", (Author("reader", clock).delta("mine", {"x": 1}, table="own"),)), claims)
    first = pull(gateway, 0, limit=4)
    for _ in range(2):  # the first connection may have sent rows, so on the second one the client may have any row
        since = gateway.submit_resume("reader", claims).result(20)
        broadcast = SyncPull("reader", since, 100)
        assert gateway.submit_pull(broadcast, claims, confirmed=False, has_not_pulled=True).result(20).decoded().deltas
    rest = pull(gateway, 0, limit=4)
    assert [[row for op, row in operations(page) if op == "INSERT"] for page in (first, rest)] == [
        ["r0", "r1"],
        ["r2", "r3"],
    ]


def test_a_client_that_starts_again_gets_its_sources_again(gateway, writer):
    writer.put(("r1", {"x": 1}))
    page = pull(gateway, cursor_of(gateway))
    assert pull(gateway, page.server_hlc).deltas == ()
    fresh = cursor_of(gateway)
    assert operations(pull(gateway, fresh)) == operations(page)


def test_a_client_that_starts_again_is_answered_when_that_is_stored(gateway, writer):
    """It then deletes its rows; a remaining position in a source would keep that source's rows from it."""
    gateway.set_rules(parse_rules(MINE))
    claims = {"sub": "reader", "team": "a"}
    writer.put(("r1", {"team": "a"}))
    since = cursor_of(gateway, claims=claims)
    received = pull(gateway, since, team="a").server_hlc
    assert pull(gateway, received, team="a").deltas == ()
    request = PullRequest(SyncPull("reader", 0), claims, knows_resync=False, confirmed=True, now_ms=0)
    reading = gateway._store.read("shop", lambda view: gateway.sources.read_page(view, request)).result()
    assert not reading.page.deltas, "nothing else makes the answer wait for a commit"
    assert unrecorded_cursor(request, reading) is None
    fresh = cursor_of(gateway, claims=claims)
    again = gateway._store.read("shop", lambda view: gateway.sources.read_page(view, request)).result()
    assert unrecorded_cursor(request, again) is not None, "there is nothing left to store"
    assert operations(pull(gateway, fresh, team="a")) == [("DELETE", "r1"), ("INSERT", "r1")]


def test_pulls_from_a_source_are_rejected_once_the_gateway_is_closed(gateway):
    gateway.sources.close()
    with pytest.raises(StagingUnavailableError, match="is closed"):
        pull(gateway, 0)


def test_the_gateways_feed_sends_no_plain_insert_of_a_row_that_a_source_may_have_sent(gateway, writer, clock):
    writer.put(("r1", {"x": 1}))
    page = pull(gateway, cursor_of(gateway))
    other = Author("other", clock)
    other.push(gateway, other.delta("r1", {"x": 2}, table="reports"), other.delta("n", {"x": 2}, table="own"))
    own = gateway.handle_pull(SyncPull("reader", page.server_hlc))
    assert operations(own) == [("DELETE", "r1"), ("INSERT", "r1"), ("INSERT", "n")]
    assert own.deltas[0].hlc <= own.deltas[1].hlc


def test_a_client_of_sources_gets_its_own_broadcasts(gateway, writer, clock):
    """A page for many followers does not take into account the rows that a client has from a source."""
    writer.put(("r1", {"x": 1}))
    page = pull(gateway, cursor_of(gateway))
    cursors = {"reader": page.server_hlc, "plain": cursor_of(gateway, "plain")}
    newcomers = [
        Newcomer(name, {"sub": name}, SubscriptionState(cursor, limit=100)) for name, cursor in cursors.items()
    ]
    states = gateway.submit_subscribe(newcomers).result()
    groups = [
        SubscriberGroup(state, frozenset([name]), with_own_changes=frozenset(), multi_connected=frozenset())
        for name, state in zip(cursors, states, strict=True)
    ]
    other = Author("other", clock)
    other.push(gateway, other.delta("r1", {"x": 2}, table="reports"))
    reader, plain = gateway.submit_scan(groups).result()
    page_of_plain = plain.page_of("plain")
    assert page_of_plain is not None
    assert operations(page_of_plain) == [("INSERT", "r1")]
    assert reader.needs_pull
    own = (
        gateway.submit_pull(SyncPull("reader", page.server_hlc), {"sub": "reader"}, confirmed=False).result().decoded()
    )
    assert operations(own) == [("DELETE", "r1"), ("INSERT", "r1")]


def test_rules_apply_to_each_row_of_a_source(gateway, writer):
    gateway.set_rules(parse_rules(MINE))
    writer.put(("a1", {"team": "a"}), ("b1", {"team": "b"}), ("none", {"x": 1}), ("moves", {"team": "a"}))
    since = cursor_of(gateway, claims={"sub": "reader", "team": "a"})
    page = pull(gateway, since, team="a")
    assert operations(page) == [("DELETE", "a1"), ("INSERT", "a1"), ("DELETE", "moves"), ("INSERT", "moves")]
    writer.put(("moves", {"team": "b"}), ("b1", {"x": 2}), ("late", {"team": "b"}))
    writer.put(("late", None), ("a1", None))
    page = pull(gateway, page.server_hlc, team="a")
    assert operations(page) == [("DELETE", "moves"), ("DELETE", "a1")], "R5: no id of b1, late or none"


def test_rows_follow_a_change_of_claims_or_rules(gateway, writer):
    gateway.set_rules(parse_rules(MINE))
    writer.put(("a1", {"team": "a"}), ("b1", {"team": "b"}), ("c1", {"team": "c"}))
    since = cursor_of(gateway, claims={"sub": "reader", "team": "a"})
    page = pull(gateway, since, team="a")
    assert operations(page) == [("DELETE", "a1"), ("INSERT", "a1")]
    page = pull(gateway, page.server_hlc, team="b")
    assert operations(page) == [("DELETE", "a1"), ("DELETE", "b1"), ("INSERT", "b1")]
    gateway.set_rules(parse_rules({**MINE, "buckets": [{"name": "none", "tables": ["other"], "filters": []}]}))
    page = pull(gateway, page.server_hlc, team="b")
    assert operations(page) == [("DELETE", "a1"), ("DELETE", "b1")], "the DELETE of a1 may not have arrived"
    assert pull(gateway, page.server_hlc, team="b").deltas == ()


def test_each_client_has_its_own_position_in_each_source(gateway, writer, tmp_path, clock):
    writer.put(("r1", {"x": 1}))
    more = KINDS["sqlite"](tmp_path / "more")
    Writer(more, clock).put(("m1", {"x": 1}))
    gateway.register_source("more", more)
    assert gateway.list_sources() == ["more", "reports"]
    since = cursor_of(gateway)
    page = pull(gateway, since)
    other = gateway.handle_pull(SyncPull("reader", page.server_hlc, 100, "more"))
    assert operations(other) == [("DELETE", "m1"), ("INSERT", "m1")]
    assert pull(gateway, other.server_hlc).deltas == (), "a pull of another source confirms it too"
    assert operations(pull(gateway, cursor_of(gateway, "second"), client="second")) == operations(page)
    more.close()


def test_an_unknown_source_is_not_found(gateway):
    with pytest.raises(NotFoundError, match=r"'absent'.*known: reports"):
        gateway.handle_pull(SyncPull("reader", 0, 100, "absent"))
    gateway.unregister_source("reports")
    assert gateway.list_sources() == []
    with pytest.raises(NotFoundError, match="known: none"):
        pull(gateway, 0)
    with pytest.raises(NotFoundError):
        gateway.unregister_source("reports")


def test_a_source_that_fails_is_an_adapters_error(gateway):
    gateway.register_source("broken", PostgresAdapter("postgresql://nobody@127.0.0.1:1/nothing"))
    with pytest.raises(AdapterError, match="failed"):
        gateway.handle_pull(SyncPull("reader", 0, 100, "broken"))


def test_source_pages_skip_rows_that_no_client_may_see(gateway, writer):
    gateway.set_rules(parse_rules(MINE))
    writer.put(*((f"b{n}", {"team": "b"}) for n in range(2500)))
    writer.put(("a", {"team": "a"}))
    since = cursor_of(gateway, claims={"sub": "reader", "team": "a"})
    assert operations(pull(gateway, since, limit=10, team="a")) == [("DELETE", "a"), ("INSERT", "a")]


class Crossing:
    """An adapter whose next read waits until another request has been served."""

    def __init__(self, inner):
        self.inner = inner
        self.request = None

    def query_deltas_since(self, query):
        request, self.request = self.request, None
        found = self.inner.query_deltas_since(query)
        if request is not None:
            request()
        return found

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_row_that_other_claims_showed_while_a_page_was_read_is_deleted(gateway, source, writer):
    gateway.set_rules(parse_rules(MINE))
    crossing, pages = Crossing(source), []
    gateway.register_source("reports", crossing)
    writer.put(("r1", {"team": "b"}))
    since = cursor_of(gateway, claims={"sub": "reader", "team": "a"})
    crossing.request = lambda: pages.append(pull(gateway, since, team="b"))
    assert operations(pull(gateway, since, team="a")) == [("DELETE", "r1")]
    assert operations(pages[0]) == [("DELETE", "r1"), ("INSERT", "r1")]


def test_a_row_is_deleted_after_the_client_changed_its_claims_more_often_than_periods_are_kept(gateway, writer):
    gateway.set_rules(parse_rules(MINE))
    writer.put(("r1", {"team": "b"}))
    writer.put(("r2", {"team": "a"}))
    page = pull(gateway, cursor_of(gateway, claims={"sub": "reader", "team": "a"}), limit=1, team="a")
    assert operations(page) == [("DELETE", "r2"), ("INSERT", "r2")]
    for turn in range(9):
        page = pull(gateway, page.server_hlc, limit=1, team="bc"[turn % 2])
        assert {row for _, row in operations(page)} == {"r1"}
    assert operations(pull(gateway, page.server_hlc, team="b")) == [("DELETE", "r2")]


def test_a_source_of_one_gateway_ignores_the_deltas_of_others(gateway, source, writer):
    gateway.set_rules(parse_rules(MINE))
    gateway.register_source("own", source, gateway="warehouse")

    def pull_own(since):
        return gateway.handle_pull(SyncPull("reader", since, 100, "own"), {"sub": "reader", "team": "a"})

    writer.put(("r1", {"team": "a", "x": 1}))
    late = Author("late", writer.clock).delta("r1", {"team": "a", "x": 9}, table="reports")
    ahead = (writer.clock.now_ms + 3_600_000) << 16
    source.insert_deltas(DeltaBatch("other.main.1.1-1", "other", (StoredDelta("other", ahead, late),)))
    page = pull_own(cursor_of(gateway, claims={"sub": "reader", "team": "a"}))
    assert operations(page) == [("DELETE", "r1"), ("INSERT", "r1")]
    writer.put(("r1", {"team": "b"}))  # it arrives before the other gateway's delta, and hides the row
    assert operations(pull_own(page.server_hlc)) == [("DELETE", "r1")]
