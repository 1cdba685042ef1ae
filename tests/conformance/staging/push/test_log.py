"""The content of every staging store's log."""

from __future__ import annotations

from lakesync.wire.log import decode_body
from tests.conformance.book import contents, make_delta
from tests.conformance.calls import many, push, read


def test_a_log_row_contains_the_whole_push(store, book):
    deltas = [make_delta("c", 9, "r1", x="é"), make_delta("c", 4, "r2"), make_delta("c", 5, "r1", y=None)]
    entry = push(store, book, *deltas)
    assert decode_body(entry.body) == deltas
    assert (entry.hlc_low, entry.hlc_high, entry.gateway, entry.shard) == (4, 9, "g", "main")


def test_rows_entries_and_backlog_survive_a_restart(place, store, book):
    for deltas in many("c", 30, width=3):
        push(store, book, *deltas)
    push(store, book, make_delta("d", 10**6, "r1-1"))
    expected, backlog = read(store, contents), store.backlog()
    store = place.reopen(store, book)
    assert read(store, contents) == expected
    assert store.backlog() == backlog
    assert read(store, lambda view: view.rows([("notes", "r1-1")]))[("notes", "r1-1")].state.visible is False
