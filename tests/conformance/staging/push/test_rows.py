"""Rows and client records of every staging store."""

from __future__ import annotations

from lakesync.model.merge import RowState
from lakesync.staging.records import ClientRecord, StoredRow
from tests.conformance.book import contents, make_delta
from tests.conformance.calls import push, read


def test_rows_are_returned_unchanged(store, book):
    push(store, book, make_delta("c", 2**62, "r\U00010000\u00e9'\"", x={"k": [1, None, "é"]}, y=2**60))
    (row,), _ = read(store, contents)
    assert (row.table, row.row_id) == ("notes", "r\U00010000\u00e9'\"")
    assert {column: bytes(value) for column, value in row.state.values().items()} == {
        "x": '{"k":[1,null,"é"]}'.encode(),
        "y": b"1152921504606846976",
    }


def test_rows_are_scanned_by_key_in_pages(store, book):
    keys = sorted((table, f"r{i}") for table in ("a", "b") for i in range(7))
    for place_, (table, row) in enumerate(keys):
        push(store, book, make_delta("c", place_ + 1, row, table, x=1))

    def work(commit):
        found, after = [], None
        while rows := commit.scan_rows(after, 3):
            after = rows[-1].key
            found += [row.key for row in rows]
        return found

    assert store.submit("g", work).result() == keys


def test_a_client_record_is_replaced_completely(store):
    for seen in (1, 2):
        store.submit("g", lambda commit, seen=seen: commit.put_client(ClientRecord("c", 7, seen))).result()
    assert read(store, lambda view: view.client("c")) == ClientRecord("c", 7, 2)
    assert read(store, lambda view: view.client("d")) is None


def test_a_store_does_not_interpret_rows(store):
    row = StoredRow(("t", "r"), arrival=1, state=RowState())
    store.submit("g", lambda commit: commit.put_rows([row])).result()
    assert read(store, lambda view: view.rows([("t", "r"), ("t", "s")])) == {("t", "r"): row}
