"""Batches, the ledger and the trim of every staging store."""

from __future__ import annotations

import pytest

from lakesync.model.errors import IntegrityError, NotFoundError
from lakesync.staging import pipeline_tables
from lakesync.staging.ledger import day_of
from tests.conformance.book import contents, id_sum
from tests.conformance.calls import flush, many, push, read

DAY_MS = 86_400_000


def test_a_new_gateway_has_no_backlog(store):
    assert store.plan("g", "main", 100) is None
    (waiting,) = store.backlog()
    assert (waiting.deltas, waiting.bytes, waiting.oldest_ms, waiting.last_seq) == (0, 0, None, 0)


def test_a_batch_is_a_whole_prefix_within_the_budget(store, book):
    entries = [push(store, book, *deltas) for deltas in many("c", 5, width=4)]
    batch = store.plan("g", "main", 11)
    assert (batch.from_seq, batch.to_seq, batch.deltas) == (1, 2, 8)
    assert (batch.arrival_low, batch.arrival_high) == (entries[0].arrival, entries[1].arrival)
    assert batch.bytes == len(entries[0].body) + len(entries[1].body)
    assert batch.batch_id == f"g.main.{batch.epoch}.1-2"


def test_a_push_above_the_budget_is_a_separate_batch(store, book):
    push(store, book, *many("c", 1, width=9)[0])
    push(store, book, *many("c", 1, start=9)[0])
    batch = store.plan("g", "main", 3)
    assert (batch.from_seq, batch.to_seq, batch.deltas) == (1, 1, 9)


def test_the_number_of_pushes_in_a_batch_is_limited(store, book, monkeypatch):
    for deltas in many("c", 3):
        push(store, book, *deltas)
    monkeypatch.setattr(pipeline_tables, "MAX_PUSHES", 2)
    batch = store.plan("g", "main", 100)
    assert (batch.from_seq, batch.to_seq, batch.deltas) == (1, 2, 2)


def test_a_push_after_a_cut_point_is_not_in_its_batch(place, store, book):
    first, second, third = many("c", 3)
    push(store, book, *first)
    push(store, book, *second)
    held = store.cut_point("g")
    push(store, book, *third)
    batch = store.plan("g", "main", 100, held.arrival)
    assert (batch.from_seq, batch.to_seq) == (1, 2)
    store.confirm(batch.batch_id, 2, id_sum(first + second))
    assert store.plan("g", "main", 100, held.arrival) is None
    assert store.backlog()[0].deltas == 1
    assert store.plan("g", "main", 100, store.cut_point("g").arrival).from_seq == 3


def test_a_batch_has_arrivals_of_one_day(store, book, clock):
    sent: dict[str, list] = {}
    for deltas in many("c", 6, width=2):
        entry = push(store, book, *deltas)
        sent.setdefault(day_of(entry.arrival), []).extend(deltas)
        clock.advance(DAY_MS // 2)
    assert len(sent) >= 3
    for day in sorted(sent):
        batch = flush(store, sent[day])
        assert day_of(batch.arrival_low) == day_of(batch.arrival_high) == day
    assert store.plan("g", "main", 100) is None


def test_a_batch_that_begins_before_since_is_not_planned(store, book, clock):
    first, second = many("c", 2)
    early = push(store, book, *first)
    clock.advance(DAY_MS)
    late = push(store, book, *second)
    assert store.plan("g", "main", 100, since=late.arrival) is None
    batch = store.plan("g", "main", 100, since=early.arrival)
    assert (batch.from_seq, batch.to_seq) == (1, 1)
    assert store.plan("g", "main", 100, since=late.arrival) == batch  # an open batch is not changed
    store.confirm(batch.batch_id, 1, id_sum(first))
    assert store.plan("g", "main", 100, since=late.arrival).from_seq == 2


def test_a_planned_batch_survives_further_pushes_and_a_restart(place, store, book):
    first, *rest = many("c", 4)
    push(store, book, *first)
    planned = store.plan("g", "main", 100)
    for deltas in rest:
        push(store, book, *deltas)
    assert store.plan("g", "main", 100) == planned
    store = place.reopen(store, book)
    assert store.plan("g", "main", 1) == planned
    store.confirm(planned.batch_id, 1, id_sum(first))
    following = store.plan("g", "main", 100)
    assert (following.from_seq, following.to_seq) == (2, 4)


def test_a_confirmation_with_wrong_counts_is_rejected_and_a_repeat_is_accepted(store, book):
    (deltas,) = many("c", 1, width=3)
    push(store, book, *deltas)
    batch = store.plan("g", "main", 100)
    for count, total in ((2, id_sum(deltas)), (3, id_sum(deltas) ^ 1), (0, 0)):
        with pytest.raises(IntegrityError, match=batch.batch_id):
            store.confirm(batch.batch_id, count, total)
    assert store.backlog()[0].flushed_seq == 0
    for _ in range(2):
        store.confirm(batch.batch_id, 3, id_sum(deltas))
    with pytest.raises(IntegrityError):
        store.confirm(batch.batch_id, 4, id_sum(deltas))
    (day,) = store.ledger("g")
    assert (day.flushed_count, day.flushed_id_sum) == (day.count, day.id_sum) == (3, id_sum(deltas))
    with pytest.raises(NotFoundError, match="never-planned"):
        store.confirm("never-planned", 0, 0)


def test_the_backlog_reports_unflushed_deltas(store, book, clock):
    entries, sent = [], []
    for deltas in many("c", 3, width=2):
        clock.advance(1000)
        entries.append(push(store, book, *deltas))
        sent.append(deltas)
    size = [len(entry.body) for entry in entries]
    (waiting,) = store.backlog()
    assert (waiting.deltas, waiting.bytes, waiting.last_seq) == (6, sum(size), 3)
    assert waiting.last_arrival == entries[-1].arrival
    assert waiting.oldest_ms == clock.now_ms - 2000
    flush(store, sent[0], 2)
    (waiting,) = store.backlog()
    assert (waiting.deltas, waiting.bytes, waiting.flushed_seq) == (4, sum(size[1:]), 1)
    assert waiting.oldest_ms == clock.now_ms - 1000
    assert store.submit("g", lambda commit: commit.backlog_bytes).result() == sum(size[1:])


def test_a_flush_request_is_done_when_earlier_pushes_are_flushed(place, store, book, clock):
    pushes = many("c", 3)
    push(store, book, *pushes[0])
    push(store, book, *pushes[1])
    store.request_flush("g")
    asked = clock.now_ms
    clock.advance(1000)
    store.request_flush("g")
    push(store, book, *pushes[2])
    store = place.reopen(store, book)
    assert store.backlog()[0].flush_requested_ms == asked
    flush(store, pushes[0], 1)
    assert store.backlog()[0].flush_requested_ms == asked
    flush(store, pushes[1], 1)
    assert store.backlog()[0].flush_requested_ms is None


def test_a_flush_request_during_a_flush_includes_later_pushes(store, book, clock):
    first, second = many("c", 2)
    push(store, book, *first)
    store.request_flush("g")
    asked, planned = clock.now_ms, store.plan("g", "main", 10)
    push(store, book, *second)
    clock.advance(1000)
    store.request_flush("g")
    store.confirm(planned.batch_id, len(first), id_sum(first))
    assert store.backlog()[0].flush_requested_ms == asked
    flush(store, second, 1)
    assert store.backlog()[0].flush_requested_ms is None


def test_a_flush_request_without_unflushed_deltas_is_done_immediately(store):
    store.request_flush("g")
    assert store.backlog()[0].flush_requested_ms is None


def test_a_trim_deletes_only_bodies_of_confirmed_batches(place, store, book):
    pushes = many("c", 4, width=2)
    entries = [push(store, book, *deltas) for deltas in pushes]
    assert store.trim("g", "main") == 0
    store.plan("g", "main", 4)
    assert store.trim("g", "main") == 0
    flush(store, pushes[0] + pushes[1])
    expected = read(store, contents)
    assert store.trim("g", "main") == sum(len(entry.body) for entry in entries[:2])
    assert store.trim("g", "main") == 0
    store = place.reopen(store, book)
    assert read(store, contents) == expected
    assert store.plan("g", "main", 100).from_seq == 3


def test_the_ledger_sums_by_arrival_day(store, book, clock):
    sent: dict[str, list] = {}
    for deltas in many("c", 6, width=2):
        entry = push(store, book, *deltas)
        sent.setdefault(day_of(entry.arrival), []).extend(deltas)
        clock.advance(DAY_MS // 2)
    ledger = store.ledger("g")
    assert [day.day for day in ledger] == sorted(sent)
    assert len(sent) >= 3
    assert [(day.count, day.id_sum) for day in ledger] == [(len(sent[d]), id_sum(sent[d])) for d in sorted(sent)]
    for day in sorted(sent):
        flush(store, sent[day])
    for day in store.ledger("g"):
        assert (day.flushed_count, day.flushed_id_sum) == (day.count, day.id_sum)


def test_the_time_of_the_last_flush_is_reported_and_survives_a_restart(place, store, book):
    first, second = many("c", 2)
    push(store, book, *first)
    (waiting,) = store.backlog()
    assert (waiting.flushed_ms, waiting.flushed_snapshot) == (None, None)
    batch = store.plan("g", "main", 100)
    store.confirm(batch.batch_id, len(first), id_sum(first), 2**62 + 1)
    push(store, book, *second)
    (waiting,) = store.backlog()
    assert waiting.flushed_ms is not None
    assert waiting.flushed_snapshot == 2**62 + 1
    assert place.reopen(store, book).backlog() == [waiting]
