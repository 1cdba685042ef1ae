"""New rows are stored encoded, and decoded when they are read."""

from __future__ import annotations

import shutil
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.feed.apply import Sender, apply
from lakesync.feed.push_rows import by_row
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import SyncRules
from lakesync.staging.records import Writer
from lakesync.staging.sqlite import SqliteStore, WriteBehindLimits
from lakesync.testing import ManualClock
from tests.conformance.book import Book, contents, make_delta
from tests.conformance.calls import push, read

LAZY = WriteBehindLimits(seconds=3600, rows=10**9, bytes=10**12)
EAGER = WriteBehindLimits(seconds=0, rows=0, bytes=0)


class Feed(Book):
    """Rows under everyone's bucket, as the engine writes them."""

    def _apply(self, commit, deltas, last):
        sender = Sender(deltas[0].client_id, ("*",), reindexed=True)
        apply(commit, by_row(deltas), sender, last, BucketIndex(SyncRules(version=1, buckets=())))


def opened(folder, allowed=LAZY):
    """Open a store with the gateway `g`."""
    store = SqliteStore(folder, ManualClock(1_700_000_000_000), allowed)
    store.open(Feed())
    store.ensure_gateway("g")
    return store


@pytest.fixture
def store(tmp_path):
    """A store that writes behind only if it must."""
    here = opened(tmp_path / "staging")
    yield here
    here.close()


def write_behind(store):
    """Write everything to the file."""
    store._read(store._open.behind.write)


def in_file(store, query):
    """Return the result of a query of `state.db`."""
    return store._read(lambda: store._open.state.sql.execute(query).fetchall())


def test_changes_that_are_written_no_longer_count_as_pending(tmp_path):
    store = opened(tmp_path, LAZY._replace(bytes=1500))
    for number in (1, 2):
        push(store, Feed(), make_delta("c", number, f"r{number}", x="x" * 1000))
        assert in_file(store, "SELECT count(*) FROM row_state") == [(number - 1,)]
        write_behind(store)
    store.close()


def test_a_new_row_is_stored_encoded_until_it_changes(store, tmp_path):
    push(store, Feed(), make_delta("c", 1, "r1", x='"ü"', y=[1]), make_delta("c", 2, "r2", x=None))
    write_behind(store)
    assert in_file(store, "SELECT count(*) FROM row_body") == [(0,)]
    expected = read(store, contents)
    for row in expected[0]:
        assert (row.writers, row.keys, row.state.touched.keys() | {"y"}) == (
            {"c": Writer(row.arrival, row.arrival)},
            ("*",),
            {"x", "y"},
        )
    store.close()
    again = opened(tmp_path / "staging")
    assert read(again, contents) == expected
    assert again.submit("g", lambda commit: commit.scan_rows(None, 10)).result() == expected[0]
    push(again, Feed(), make_delta("c", 3, "r1", z=1))
    changed = read(again, contents)
    write_behind(again)
    assert in_file(again, "SELECT row_id, born IS NULL FROM row_state ORDER BY row_id") == [("r1", 1), ("r2", 0)]
    assert read(again, contents) == changed != expected
    again.close()


def test_a_row_of_which_only_the_number_was_committed_is_written_after_a_restart(store, tmp_path):
    push(store, Feed(), make_delta("c", 1, "r1", x=1))
    assert not store._read(store._open.behind.try_write_part)  # a part of it: r1 is written separately
    push(store, Feed(), make_delta("c", 2, "r2", x=2))
    expected = read(store, contents)
    while not store._read(store._open.behind.try_write_part):
        pass
    numbers = in_file(store, "SELECT row_id, number FROM row_state ORDER BY row_id")
    assert in_file(store, "SELECT row_id FROM row_state WHERE spelled IS NULL") == [("r2",)]
    shutil.copytree(tmp_path / "staging", tmp_path / "killed")
    again = opened(tmp_path / "killed")
    assert read(again, contents) == expected
    write_behind(again)
    assert in_file(again, "SELECT row_id, number FROM row_state WHERE spelled IS NOT NULL") == numbers
    again.close()


def test_a_new_row_of_a_failed_transaction_is_not_kept(store):
    def fails(commit):
        Feed().push([make_delta("c", 1, "r1", x=1)])(commit)
        assert len(commit.entries_after(["*"], 0, 10)) == 1
        raise KeyError

    with pytest.raises(KeyError):
        store.submit("g", fails).result()
    assert read(store, contents) == ([], [])
    push(store, Feed(), make_delta("d", 2, "r1", x=2))
    write_behind(store)
    (row,), _ = read(store, contents)
    assert row.state.live[0].client_id == "d"


_DELTAS = st.tuples(
    st.sampled_from("cd"),
    st.sampled_from(["r1", "r2", "r3"]),
    st.dictionaries(st.sampled_from("xy"), st.integers(0, 2)),
    st.integers(0, 3),
    st.booleans(),
)


def test_rows_and_entries_do_not_depend_on_the_time_of_writing(store, tmp_path):
    eager = opened(tmp_path / "eager", EAGER)
    names = map("g{}".format, count())

    @settings(max_examples=25, deadline=None)
    @given(st.lists(_DELTAS, max_size=12))
    def check(writes):
        gateway = next(names)
        for here in (eager, store):
            here.ensure_gateway(gateway)
        for place, (client, row, values, late, looked_at) in enumerate(writes, 1):
            delta = make_delta(client, max(1, 10 * place - 8 * late) + (client == "d"), row, **values)
            for here in (eager, store):
                push(here, Feed(), delta, gateway=gateway)
            if looked_at:
                assert read(store, contents, gateway) == read(eager, contents, gateway)
        write_behind(store)
        assert read(store, contents, gateway) == read(eager, contents, gateway)

    check()
    eager.close()
