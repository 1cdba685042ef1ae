"""`SharedCursorView` and `SharedCursorCommit` of every staging store: one cursor that maps to one of each shard."""

from __future__ import annotations

from lakesync.staging.records import ClientRecord
from tests.conformance.calls import read


def put(store, cursor, parts, forget_below=0):
    store.submit("g", lambda commit: commit.put_shared_cursor(cursor, parts, forget_below=forget_below)).result()


def test_the_parts_of_a_cursor_are_kept_over_a_restart(place, store, book):
    assert read(store, lambda view: (view.newest_shared_cursor(), view.shared_cursor(512))) == (0, None)
    put(store, 512, {"main": 7, "hot": 9})
    put(store, 1024, {"main": 8, "hot": 9})
    store = place.reopen(store, book)
    assert read(store, lambda view: view.newest_shared_cursor()) == 1024
    assert read(store, lambda view: view.shared_cursor(512)) == {"main": 7, "hot": 9}
    assert read(store, lambda view: view.shared_cursor(513)) is None


def test_cursors_below_the_bound_are_deleted(store):
    put(store, 512, {"main": 7})
    put(store, 1024, {"main": 8}, forget_below=1024)
    assert read(store, lambda view: (view.shared_cursor(512), view.shared_cursor(1024))) == (None, {"main": 8})


def test_a_shard_counts_as_sent_once_a_cursor_covers_its_rows(store):
    store.submit("g", lambda commit: commit.put_client(ClientRecord("c", commit.epoch, 1))).result()
    put(store, 512, {"main": 7, "empty": 1})
    sent = read(store, lambda view: {shard: view.sent_rows_of_shard(shard) for shard in ("main", "empty", "other")})
    assert sent == {"main": True, "empty": False, "other": False}
