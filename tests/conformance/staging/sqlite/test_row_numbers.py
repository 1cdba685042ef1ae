"""L10: rows of a table that one client sees are adjacent in the file, in whatever order they arrived."""

from __future__ import annotations

from itertools import groupby

import pytest

from lakesync.staging.encoded_feed import Reader
from lakesync.staging.sqlite import SqliteStore, WriteBehindLimits
from tests.conformance.book import Book, make_delta
from tests.conformance.calls import push, read

LAZY = WriteBehindLimits(seconds=3600, rows=10**9, bytes=10**12)
NEW_READER = Reader(-1, b'"newcomer"', 2**62, "@newcomer")


@pytest.fixture
def opened(tmp_path, clock):
    """Opens the store another time."""
    stores = []

    def again() -> SqliteStore:
        for store in stores:
            store.close()
        store = SqliteStore(tmp_path / "staging", clock, LAZY)
        store.open(Book())
        store.ensure_gateway("g")
        stores.append(store)
        return store

    yield again
    stores[-1].close()


def write_behind(store):
    """Write everything to the file."""
    store._read(store._open.behind.write)


def kept(store):
    """`(row id, number, whether it is encoded)` in the file, by number."""
    query = "SELECT row_id, number, spelled IS NOT NULL FROM row_state ORDER BY number"
    return store._read(lambda: store._open.state.sql.execute(query).fetchall())


@pytest.mark.parametrize("at_once", [True, False], ids=["written together", "one by one"])
def test_rows_of_a_bucket_are_stored_together(opened, book, at_once):
    store = opened()
    for number in range(40):
        push(store, book, make_delta("c", number, f"r{number}", team="ab"[number % 2]))
        if not at_once:
            write_behind(store)
    write_behind(store)
    teams = [team for team, _ in groupby(int(row_id[1:]) % 2 for row_id, *_ in kept(store))]
    assert teams == [0, 1]
    for team, first in (('"a"', 0), ('"b"', 1)):
        text = read(store, lambda view, bucket=team: view.read_range([bucket], 0, view.arrival, 100, NEW_READER)).text
        places = [text.index(f'"r{number}"'.encode()) for number in range(first, 40, 2)]
        assert places == sorted(places)
        assert text.count(b'"op"') == 20


def test_a_row_whose_entry_was_read_before_it_was_written_keeps_its_number(opened, book):
    store = opened()
    push(store, book, make_delta("c", 1, "r1", x=1), make_delta("c", 2, "r2", x=2))
    assert [entry.row_id for entry in read(store, lambda view: view.entries_after(["*"], 0, 10))] == ["r1", "r2"]
    (first, number, spelled), _ = kept(store)
    assert (first, spelled) == ("r1", 0)
    assert read(store, lambda view: view.read_range(["*"], 0, view.arrival, 10, NEW_READER)) is None
    write_behind(store)
    assert kept(store)[0] == (first, number, 1)
    assert read(store, lambda view: view.read_range(["*"], 0, view.arrival, 10, NEW_READER)).deltas == 2


def test_row_numbers_of_a_failed_transaction_are_not_kept(opened, book):
    store = opened()
    push(store, book, make_delta("c", 1, "r1", x=1))

    def fails(commit):
        book.push([make_delta("d", 2, "r2", x=2)])(commit)
        assert len(commit.entries_after(["*"], 0, 10)) == 2
        raise KeyError

    with pytest.raises(KeyError):
        store.submit("g", fails).result()
    assert "r2" not in {row_id for row_id, *_ in kept(store)}
    push(store, book, make_delta("d", 3, "r3", x=3))
    write_behind(store)
    assert [row_id for row_id, *_ in kept(store)] == ["r1", "r3"]
    assert (
        read(store, lambda view: view.read_range(["*"], 0, view.arrival, 10, NEW_READER)).text.count(b'"rowId":"r3"')
        == 1
    )


def test_row_numbers_are_not_reused_after_a_restart(opened, book):
    store = opened()
    push(store, book, *(make_delta("c", number, f"r{number}", team="ab"[number % 2]) for number in range(6)))
    before = {row_id: number for row_id, number, _ in kept(opened())}
    store = opened()
    push(store, book, make_delta("c", 9, "r9", team="a"), make_delta("c", 10, "r1", y=1))
    write_behind(store)
    after = {row_id: number for row_id, number, _ in kept(store)}
    assert before.items() <= after.items()
    assert after["r9"] > max(before.values())
