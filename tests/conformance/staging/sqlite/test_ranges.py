"""Ranges of the feed: encoded rows for a reader that has none of them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from lakesync.staging.encoded_feed import Reader, encode_client_id
from lakesync.staging.records import Move
from lakesync.staging.sqlite.write_behind import WriteBehindLimits
from lakesync.wire.encoded import encode_row
from tests.conformance.book import EVERYONE, make_delta
from tests.conformance.calls import push, read
from tests.conformance.places import PLACES, Place

NEW_READER = Reader(-1, encode_client_id("newcomer"), 2**62, "@newcomer")


@pytest.fixture
def place(request, clock):
    """A store that keeps encoded rows."""
    here = Place(PLACES["sqlite"](request), clock)
    yield here
    here.close()


def look(store, reader=NEW_READER, since=0, limit=100):
    """Return a range from a position, and the same rows one by one."""

    def work(view):
        stretch = view.read_range([EVERYONE], since, view.arrival, limit, reader)
        entries = view.entries_after([EVERYONE], since, limit)
        rows = view.rows({entry.key for entry in entries})
        return stretch, [EncodedRow(entry.row_id, entry.changed, _encoded(rows[entry.key])) for entry in entries]

    return read(store, work)


class EncodedRow(NamedTuple):
    """A row at its place in the feed, encoded for a client that lacks all of it."""

    row_id: str
    changed: int
    encoded: bytes


def _encoded(row):
    return encode_row(row.table, row.row_id, row.state)[0] if row.state.visible else b""


def written_behind(store):
    """Write every pending row to the file."""
    store._read(store._open.behind.write)


def wrote(store, client, row_id):
    """Record a client among the writers of a row."""

    def work(commit):
        (row,) = commit.rows([("notes", row_id)]).values()
        row.writers[client] = (0, row.arrival)
        commit.put_rows([row])

    store.submit("g", work).result()
    written_behind(store)


def test_rows_are_joined_in_the_order_of_the_feed(store, book):
    push(store, book, make_delta("c", 1, "r1", x=1), make_delta("c", 2, "r2", x="é"), make_delta("c", 3, "r3", x=None))
    push(store, book, make_delta("d", 4, "r1", y=1))
    written_behind(store)
    stretch, rows = look(store)
    assert [row.row_id for row in rows] == ["r2", "r3", "r1"]
    assert stretch.text == b",".join(row.encoded for row in rows)
    assert (list(map(ord, stretch.counts)), stretch.deltas, stretch.last) == ([1, 1, 2], 4, rows[-1].changed)
    assert look(store, limit=2)[0].text == b",".join(row.encoded for row in rows[:2])
    assert look(store, since=rows[0].changed)[0].text == b",".join(row.encoded for row in rows[1:])
    assert look(store, since=rows[-1].changed)[0] is None


def test_a_range_is_cut_at_its_limits_of_deltas_and_bytes(store, book):
    push(store, book, *(make_delta("c", at, f"r{at}", x=at) for at in range(1, 5)))
    push(store, book, make_delta("d", 9, "r1", y=1), make_delta("d", 10, "r2", y=1))
    push(store, book, make_delta("d", 11, "r3"))
    written_behind(store)
    stretch, rows = look(store)
    spelled = {row.row_id: row.encoded for row in rows}
    assert [row.row_id for row in rows] == ["r4", "r1", "r2", "r3"]
    assert list(map(ord, stretch.counts)) == [1, 2, 2, 0]
    assert stretch.prefix(1, 1 << 20) == (spelled["r4"], 1, 1)
    assert stretch.prefix(2, 1 << 20) == stretch.prefix(3, 1 << 20) == (spelled["r4"] + b"," + spelled["r1"], 3, 2)
    assert stretch.prefix(5, 1 << 20) == (stretch.text, 5, 3)
    assert stretch.prefix(9, 1 << 20) == (stretch.text, 5, 4)
    assert stretch.prefix(9, 1) == (spelled["r4"], 1, 1)
    assert stretch.prefix(9, len(spelled["r4"]) + 1) == stretch.prefix(2, 1 << 20)


def test_a_deleted_row_is_empty_in_a_range_for_a_reader_that_never_had_it(store, book):
    push(store, book, make_delta("c", 1, "r1", x=1), make_delta("c", 2, "r2", x=1))
    before = read(store, lambda view: view.arrival)
    push(store, book, make_delta("d", 3, "r1"))
    written_behind(store)
    assert list(map(ord, look(store)[0].counts)) == [1, 0]
    assert look(store, Reader(before, encode_client_id("newcomer"), before, "@newcomer"), since=before)[0] is None
    wrote(store, "d", "r1")
    assert look(store, Reader(-1, encode_client_id("d"), 2**62, "@newcomer"), since=before)[0] is None


@pytest.mark.parametrize("client", ["c", "d", 'quo"te'])
def test_a_range_with_a_row_that_the_reader_wrote_is_not_served_whole(store, book, client):
    push(store, book, make_delta("e", 1, "r1", x=1), make_delta("e", 2, "r2", x=1))
    wrote(store, client, "r1")
    assert look(store)[0] is not None
    assert look(store, Reader(-1, encode_client_id(client), 2**62, "@newcomer"))[0] is None
    place_of_first = look(store)[1][0].changed
    assert look(store, Reader(-1, encode_client_id(client), 2**62, "@newcomer"), since=place_of_first)[0] is not None


def test_a_range_with_a_row_that_the_reader_had_is_not_served_whole(store, book):
    push(store, book, make_delta("c", 1, "r1", x=1))
    base = read(store, lambda view: view.arrival)
    push(store, book, make_delta("d", 2, "r2", x=1))
    push(store, book, make_delta("d", 3, "r1", y=1))
    written_behind(store)
    reader = Reader(base, encode_client_id("newcomer"), base, "@newcomer")
    assert look(store, reader, since=base)[0] is None
    assert look(store, reader, since=base, limit=1)[0].text == look(store, limit=1)[1][0].encoded


def test_a_range_with_unwritten_rows_is_not_read_from_the_file(store, book, monkeypatch):
    monkeypatch.setattr(store._open.owner, "_limits", WriteBehindLimits(seconds=3600))
    push(store, book, make_delta("c", 1, "r1", x=1), make_delta("c", 2, "r2", x=1))
    written_behind(store)
    push(store, book, make_delta("d", 3, "r2", x=2))
    stretch, rows = look(store)
    assert stretch is None
    assert look(store, limit=1)[0].text == rows[0].encoded
    written_behind(store)
    assert look(store)[0].text == b",".join(row.encoded for row in rows)


def moved(store, *moves):
    """Move rows into, within or out of buckets, each at a separate arrival."""

    def work(commit):
        arrivals = commit.next_arrivals(len(moves))
        commit.put_rows(
            (),
            [
                Move(bucket, "notes", row_id, at, kind)
                for at, (row_id, *each) in zip(arrivals, moves, strict=True)
                for bucket, kind in each
            ],
        )

    store.submit("g", work).result()
    written_behind(store)


def counts(store, buckets, reader=NEW_READER, since=0):
    """Return the number of deltas sent for each entry of several buckets; None if the rows are read one by one."""
    stretch = read(store, lambda view: view.read_range(buckets, since, view.arrival, 100, reader))
    return None if stretch is None else list(map(ord, stretch.counts))


def test_a_row_in_several_buckets_is_in_the_range_at_its_latest_arrival(store, book):
    push(store, book, *(make_delta("c", at, f"r{at}", x=at) for at in range(1, 4)))
    moved(store, ("r1", ("a", "join"), ("b", "join")), ("r2", ("b", "join")), ("r3", ("a", "join")))
    assert counts(store, ["a", "b"]) == [1, 0, 1, 1]
    moved(store, ("r1", ("b", "leave")), ("r3", ("b", "join")))
    assert counts(store, ["a", "b"]) == [0, 1, 0, 1, 1]
    assert counts(store, ["a", "b", "never used"]) == [0, 1, 0, 1, 1]
    assert counts(store, ["b"]) == [1, 0, 1]


def test_a_range_with_a_row_that_moved_between_buckets_is_not_served_whole(store, book):
    push(store, book, make_delta("c", 1, "r1", x=1), make_delta("c", 2, "r2", x=1))
    moved(store, ("r1", ("a", "join")))
    base = read(store, lambda view: view.arrival)
    moved(store, ("r2", ("b", "join")))
    there = Reader(base, encode_client_id("newcomer"), base, "@newcomer")
    assert counts(store, ["a", "b"], there, since=base) == [1]
    moved(store, ("r1", ("a", "leave"), ("b", "join")))
    assert counts(store, ["a", "b"], there, since=base) is None
    assert counts(store, ["a", "b"]) == [1, 1, 0]


def test_a_range_with_a_hidden_row_of_the_readers_own_is_not_served_whole(store, book):
    push(store, book, make_delta("c", 1, "r1", x=1))
    moved(store, ("r1", ("a", "join")), ("r1", ("@newcomer", "own")))
    assert counts(store, ["a", "b"]) == [0, 1]
    moved(store, ("r1", ("a", "leave")))
    assert counts(store, ["a", "b"]) is None
    assert counts(store, ["a", "b"], NEW_READER._replace(own="@another")) == [0]
