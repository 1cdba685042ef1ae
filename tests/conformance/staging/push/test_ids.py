"""Ids of accepted deltas are known permanently, and found by range."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.model.delta import dedup_key
from lakesync.wire.log import pack
from tests.conformance.book import make_delta
from tests.conformance.calls import flush, many, push


class KeptError(Exception):
    """Returns a work's result as an exception, so that the transaction is rolled back."""


def test_a_repeated_delta_is_recognised_at_any_position(store, book):
    sent = [delta for pushed in many("c", 20, width=3) for delta in pushed]
    for i in range(0, len(sent), 3):
        push(store, book, *sent[i : i + 3])
    assert push(store, book, *reversed(sent)) is None
    assert push(store, book, sent[7]) is None


def test_ids_are_found_beside_the_highest_hlc(store, book):
    """An app with an embedded gateway may restore deltas with any hlc."""
    sent = [make_delta("c", hlc, f"r{hlc}", x=1) for hlc in (1, 2**63 - 1)]
    push(store, book, *sent)
    assert push(store, book, *sent) is None
    assert push(store, book, make_delta("c", 2**60, "r", x=1)).seq == 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_ids_in_a_range_equal_those_of_a_naive_model(store, data):
    client = f"c{data.draw(st.integers(0, 10**9))}"
    pushes = data.draw(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4, unique=True), max_size=6))
    low, high = sorted(data.draw(st.tuples(st.integers(0, 60), st.integers(0, 60))))
    sent = [make_delta(client, hlc, f"r{place_}-{hlc}", x=1) for place_, hlcs in enumerate(pushes) for hlc in hlcs]

    def work(commit):
        before = commit.known_ids(client, -1, 100), commit.highest_hlc(client)
        for place_, hlcs in enumerate(pushes):
            deltas = [make_delta(client, hlc, f"r{place_}-{hlc}", x=1) for hlc in hlcs]
            commit.append(client, pack(deltas), commit.next_arrivals(1)[0], {})
        after = commit.known_ids(client, low, high), commit.highest_hlc(client)
        raise KeptError(before, after)

    raised = store.submit("g", work).exception()
    assert isinstance(raised, KeptError)
    before, after = raised.args
    assert before == (set(), -1)
    wanted = {(delta.hlc, dedup_key(delta.delta_id)) for delta in sent if low <= delta.hlc <= high}
    assert after == (wanted, max((delta.hlc for delta in sent), default=-1))


def test_ids_survive_a_trim_and_a_restart(place, store, book):
    sent = [delta for pushed in many("c", 5, width=2) for delta in pushed]
    push(store, book, *sent)
    flush(store, sent)
    assert store.trim("g", "main") > 0
    store = place.reopen(store, book)
    assert push(store, book, *sent) is None
    assert store.trim("g", "main") == 0
