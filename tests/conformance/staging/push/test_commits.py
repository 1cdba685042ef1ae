"""Commits of every staging store are atomic, ordered and isolated between gateways."""

from __future__ import annotations

import pytest

from lakesync.model.errors import NotFoundError
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord, Move
from tests.conformance.book import EVERYONE, contents, make_delta
from tests.conformance.calls import push, read


def test_committed_data_can_be_read(store, book):
    entry = push(store, book, make_delta("c", 5, "r1", x=1), make_delta("c", 6, "r2", x=2))
    assert (entry.seq, entry.count, entry.hlc_low, entry.hlc_high) == (1, 2, 5, 6)
    rows, entries = read(store, contents)
    assert [row.row_id for row in rows] == ["r1", "r2"]
    assert [found.changed for found in entries] == [entry.arrival - ARRIVAL_STEP, entry.arrival]
    assert read(store, lambda view: view.arrival) == entry.arrival


def test_a_failed_transaction_stores_nothing_and_does_not_affect_its_group(store, book):
    def failing(commit):
        book.push([make_delta("c", 50, "lost", x=1)])(commit)
        commit.put_client(ClientRecord("c", commit.epoch, 1))
        commit.put_rows((), [Move("fresh", "notes", "lost", commit.next_arrivals(1)[0], "join")])
        raise ValueError("on purpose")

    futures = []
    for i in range(20):
        futures.append(store.submit("g", book.push([make_delta("c", 100 + i, f"r{i}", x=i)])))
        futures.append(store.submit("g", failing))
    good, bad = futures[::2], futures[1::2]
    assert [future.result().seq for future in good] == list(range(1, 21))
    for future in bad:
        with pytest.raises(ValueError, match="on purpose"):
            future.result()
    rows, entries = read(store, contents)
    assert {row.row_id for row in rows} == {f"r{i}" for i in range(20)}
    assert {entry.bucket for entry in entries} == {EVERYONE}
    assert read(store, lambda view: (view.buckets("fresh"), view.client("c"))) == ([], None)
    assert [day.count for day in store.ledger("g")] == [20]


def test_a_failed_transaction_that_needs_to_run_alone_stores_nothing(store, book):
    def failing(commit):
        commit.run_alone()
        book.push([make_delta("c", 50, "lost", x=1)])(commit)
        commit.put_client(ClientRecord("c", commit.epoch, 1))
        commit.put_write_scope("rules")
        commit.put_shared_cursor(7, {"main": 5}, forget_below=0)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        store.submit("g", failing).result()
    assert read(store, contents) == ([], [])
    assert read(store, lambda view: (view.client("c"), view.shared_cursor(7), view.config.write_scope)) == (None,) * 3
    assert (store.ledger("g"), store.backlog()[0].last_seq) == ([], 0)
    assert push(store, book, make_delta("c", 50, "kept", x=1)).seq == 1


def test_a_bucket_of_a_failed_transaction_can_be_created_again(store):
    def work(commit, fail):
        commit.put_rows((), [Move("b", "t", "r", commit.next_arrivals(1)[0], "join")])
        if fail:
            raise ValueError

    failed = store.submit("g", lambda commit: work(commit, True))
    store.submit("g", lambda commit: work(commit, False)).result()
    assert isinstance(failed.exception(), ValueError)
    assert [entry.row_id for entry in read(store, lambda view: view.entries_after(["b"], 0, 10))] == ["r"]


def test_a_commit_reads_what_it_wrote(store, book):
    def work(commit):
        book.push([make_delta("c", 7, "r", x=1)])(commit)
        commit.put_client(ClientRecord("c", commit.epoch, 9))
        rows = commit.rows([("notes", "r")])
        entries = commit.entries_after([EVERYONE], 0, 10)
        return (
            len(rows),
            len(entries),
            commit.client("c").last_seen_ms,
            commit.highest_hlc("c"),
            commit.backlog_bytes,
        )

    *seen, size = store.submit("g", work).result()
    assert seen == [1, 1, 9, 7]
    assert size > 0


def test_gateways_do_not_see_each_other(store, book):
    store.ensure_gateway("other")
    push(store, book, make_delta("c", 1, "r", x=1))
    assert read(store, contents, "other") == ([], [])
    assert store.gateways() == ["g", "other"]


def test_an_unknown_gateway_is_an_error_with_its_name(store):
    for future in (store.submit("nowhere", lambda _: None), store.read("nowhere", lambda _: None)):
        with pytest.raises(NotFoundError, match="nowhere"):
            future.result()
    for call in (store.gateway_config, store.ledger, store.request_flush, store.newest_checkpoint):
        with pytest.raises(NotFoundError, match="nowhere"):
            call("nowhere")
    with pytest.raises(NotFoundError, match="nowhere"):
        store.plan("nowhere", "main", 10)


def test_ensuring_a_gateway_twice_keeps_its_epoch(store, clock):
    epoch = read(store, lambda view: view.epoch)
    clock.advance(1000)
    store.ensure_gateway("g")
    assert read(store, lambda view: view.epoch) == epoch


def test_transactions_run_in_order_of_submission(store):
    order: list[int] = []
    futures = [store.submit("g", lambda _, i=i: order.append(i)) for i in range(300)]
    for future in futures:
        future.result()
    assert order == list(range(300))
