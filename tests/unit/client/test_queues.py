"""Custom queues: their notifications; no change is lost."""

from __future__ import annotations

from contextlib import suppress

import pytest

import lakesync
from lakesync.client import DbError, MemoryQueue, RetryPolicy, SyncQueue, UnreachableError
from lakesync.model.errors import BackpressureError, SchemaError
from lakesync.model.schema import parse_schema
from tests.unit.client.queue_support import NOTES, RecordingTransport, delta, rows_there

SCHEMAS = [NOTES]


class RecordingQueue(MemoryQueue):
    """Records its notifications, and sends the newest delta first."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.broken = False

    def push(self, delta):
        if self.broken:
            raise OSError("the queue's disk is full")
        self.calls.append(("push", delta.row_id))
        return super().push(delta)

    def peek(self, limit=100):
        return super().peek(1 << 30)[::-1][:limit]

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in ("mark_sending", "ack", "nack"):
            return found

        def noted(ids):
            rows = sorted(self._entries[each].delta.row_id for each in ids if each in self._entries)
            self.calls.append((name, *rows))
            found(ids)

        return noted


def test_a_memory_queue_keeps_an_item_until_it_is_acknowledged():
    now = [1000.0]
    queue = MemoryQueue(RetryPolicy(first_delay=2, longest_delay=5), clock=lambda: now[0])
    assert isinstance(queue, SyncQueue)
    first, second = queue.push(delta("a")), queue.push(delta("b"))
    assert queue.push(delta("a")) is first
    assert (first.id, first.status, first.created_at, first.retry_count) == (delta("a").delta_id, "pending", 10**6, 0)
    assert queue.peek(1) == [first]
    queue.mark_sending([first.id, "of another"])
    assert queue.peek() == [second]
    for wait in (2, 4, 5, 5):
        queue.mark_sending([first.id])
        queue.nack([first.id, second.id])
        assert queue.peek() == [second], "which was not being sent"
        now[0] += wait - 0.5
        assert queue.peek() == [second]
        now[0] += 0.5
        assert queue.peek() == [first, second]
    assert first.retry_count == 4
    queue.ack([first.id, "of another"])
    assert (queue.depth(), queue.peek()) == (1, [second])
    queue.clear()
    assert queue.depth() == 0


def test_a_memory_queue_computes_the_delay_of_a_nack_under_its_lock():
    """Otherwise two threads could count one retry, or change an item that a third one removes."""
    was_locked = []

    def clock():
        was_locked.append(queue._lock.locked())
        return 1000.0

    queue = MemoryQueue(clock=clock)
    item = queue.push(delta("a"))
    queue.mark_sending([item.id])
    queue.nack([item.id])
    assert was_locked == [True, True]


def test_a_custom_queue_is_notified_and_chooses_the_next_push(opened, gateway):
    queue, transport = RecordingQueue(), RecordingTransport(gateway)
    alice = opened(queue=queue, transport=transport, limits=lakesync.client.CoreLimits(push_deltas=1))
    for row_id in "abc":
        alice["notes"].insert({"text": row_id}, row_id=row_id)
        assert queue.calls.pop() == ("push", row_id)
    assert queue.depth() == alice.coordinator.queue_depth() == 3
    alice.sync()
    assert transport.pushed == [["c"], ["b"], ["a"]]
    assert queue.calls == [(what, row_id) for row_id in "cba" for what in ("mark_sending", "ack")]
    assert (queue.depth(), alice.pending()) == (0, [])
    with alice.transaction():
        alice["notes"].update("a", text="two")
        alice["notes"].delete("b")
    assert queue.depth() == 2


def test_a_custom_queue_is_notified_of_overload_rejection_and_drop(opened, gateway):
    gateway.register_schema(parse_schema(NOTES))
    queue, transport = RecordingQueue(), RecordingTransport(gateway)
    wide = {**NOTES, "columns": [*NOTES["columns"], {"name": "more", "type": "string"}]}
    alice = opened(queue=queue, transport=transport, schemas=[wide])
    alice["notes"].insert({"text": "a"}, row_id="a")
    transport.error = BackpressureError("too much", retry_after=0)
    with pytest.raises(BackpressureError):
        alice.sync()
    assert queue.calls == [("push", "a"), ("mark_sending", "a"), ("nack", "a")]
    transport.error = UnreachableError("no response")
    queue._entries[next(iter(queue._entries))].retry_after = None
    with pytest.raises(UnreachableError):
        alice.sync()
    assert queue.calls[3:] == [("mark_sending", "a")]
    transport.error = None
    alice["notes"].insert({"text": "b", "more": "refused"}, row_id="b")
    alice.sync()
    assert queue.depth() == 0, "a refused edit waits for the app, not in the queue"
    assert queue.calls[4:] == [("push", "b"), ("ack", "a"), ("mark_sending", "b"), ("ack", "b")]
    (refused,) = alice.pending()
    assert (refused.status, refused.code) == ("refused", SchemaError.code)
    alice.retry()
    assert queue.calls[8:] == [("push", "b")]
    alice.drop(refused.number)
    assert queue.calls[9:] == [("ack", "b")]


def test_a_failing_or_forgetful_queue_loses_no_change(opened, gateway):
    queue = RecordingQueue()
    alice = opened(queue=queue)
    queue.broken = True
    alice["notes"].insert({"text": "a"}, row_id="a")
    assert queue.depth() == 0
    queue.broken = False
    alice.sync()
    assert rows_there(gateway) == {"a"}
    alice["notes"].insert({"text": "b"}, row_id="b")
    alice.close()
    again = opened(queue=MemoryQueue())
    assert again.coordinator.queue.depth() == 1, "the process ended, and its queue with it"
    again.sync()
    assert rows_there(gateway) == {"a", "b"}
    assert again.coordinator.queue.depth() == 0


class OnceFailingQueue(MemoryQueue):
    """Raises in the next call of one method."""

    failing = None

    def fail_once(self, method):
        if self.failing == method:
            self.failing = None
            raise OSError("the queue's disk is full")

    def ack(self, ids):
        self.fail_once("ack")
        super().ack(ids)

    def nack(self, ids):
        self.fail_once("nack")
        super().nack(ids)


def end_delays(queue):
    for entry in queue._entries.values():
        entry.retry_after = None


def test_an_edit_is_pushed_again_after_a_failed_nack(opened, gateway):
    queue, transport = OnceFailingQueue(), RecordingTransport(gateway)
    alice = opened(queue=queue, transport=transport)
    alice["notes"].insert({"text": "a"}, row_id="a")
    queue.failing, transport.error = "nack", BackpressureError("too much", retry_after=0)
    with pytest.raises(BackpressureError):
        alice.sync()
    transport.error = None
    alice.sync()
    end_delays(queue)
    alice.sync()
    assert rows_there(gateway) == {"a"}
    assert queue.depth() == 0


def test_a_durable_queue_gets_a_nack_that_a_killed_process_owed_it(opened, gateway):
    queue = MemoryQueue()
    alice = opened(queue=queue)
    alice["notes"].insert({"text": "a"}, row_id="a")
    queue.mark_sending([item.id for item in queue.peek()])
    alice.close()
    alice = opened(queue=queue)
    end_delays(queue)
    alice.sync()
    assert rows_there(gateway) == {"a"}
    assert queue.depth() == 0


def with_delayed_edit(opened, queue, transport):
    """A client with an edit whose push met an overload, and the queue's item of the edit."""
    alice = opened(queue=queue, transport=transport)
    alice["notes"].insert({"text": "a"}, row_id="a")
    transport.error = BackpressureError("too much", retry_after=0)
    with pytest.raises(BackpressureError):
        alice.sync()
    (item,) = queue._entries.values()
    return alice, item


def test_a_reopened_file_does_not_delay_a_retry_again(opened, gateway):
    queue, transport = MemoryQueue(), RecordingTransport(gateway)
    alice, item = with_delayed_edit(opened, queue, transport)
    due = item.retry_after
    alice.close()
    opened(queue=queue, transport=transport)
    assert (item.retry_count, item.retry_after) == (1, due)


def test_a_rolled_back_transaction_does_not_delay_a_retry(opened, gateway):
    queue, transport = MemoryQueue(clock=lambda: 0.0), RecordingTransport(gateway)  # its retry is never due
    alice, item = with_delayed_edit(opened, queue, transport)
    store = alice.coordinator.replica.store
    with suppress(OSError), store.transaction():
        raise OSError
    assert store.edits("waiting", 1) == []
    assert item.retry_count == 1


def test_a_new_queue_offers_the_waiting_edit_behind_a_sent_one(opened, gateway):
    transport = RecordingTransport(gateway)
    alice = opened(transport=transport)
    alice["notes"].insert({"text": "a"}, row_id="a")
    transport.error = UnreachableError("no response")
    with pytest.raises(UnreachableError):
        alice.sync()
    alice["notes"].insert({"text": "b"}, row_id="b")
    alice.close()
    queue = MemoryQueue()
    opened(queue=queue)
    assert [item.delta.row_id for item in queue.peek()] == ["b"]
    assert queue.depth() == 2


def test_a_dropped_edit_is_not_pushed_after_a_failed_ack(opened, gateway):
    queue = OnceFailingQueue()
    alice = opened(queue=queue)
    alice["notes"].insert({"text": "a"}, row_id="a")
    queue.failing = "ack"
    (edit,) = alice.pending()
    alice.drop(edit.number)
    assert queue.depth() == 1
    alice.sync()
    assert rows_there(gateway) == set()
    assert queue.depth() == 0


def test_a_durable_queue_gets_an_ack_that_a_killed_process_owed_it(opened, gateway):
    queue = OnceFailingQueue()
    alice = opened(queue=queue)
    for row_id in ("dropped", "kept"):
        alice["notes"].insert({"text": "a"}, row_id=row_id)
    queue.failing = "ack"
    alice.drop(alice.pending()[0].number)
    alice.close()
    assert queue.depth() == 2
    alice = opened(queue=queue)
    assert queue.depth() == 1
    alice.sync()
    assert rows_there(gateway) == {"kept"}
    assert alice.coordinator.replica.read("SELECT count(*) FROM _lakesync_queue_acks") == [(1,)], (
        "the cursor of the last ack"
    )


def test_a_refused_edit_is_not_pushed_after_a_failed_ack(opened, gateway):
    gateway.register_schema(parse_schema(NOTES))
    queue, transport = OnceFailingQueue(), RecordingTransport(gateway)
    wide = {**NOTES, "columns": [*NOTES["columns"], {"name": "more", "type": "string"}]}
    alice = opened(queue=queue, transport=transport, schemas=[wide])
    alice["notes"].insert({"text": "b", "more": "refused"}, row_id="b")
    queue.failing = "ack"
    assert len(alice.sync().refused) == 1
    alice.sync()
    assert transport.pushed == [["b"]]
    assert queue.depth() == 0


def test_a_write_that_a_custom_queue_cannot_be_notified_of_does_not_fail(opened, gateway, monkeypatch):
    """The write is already committed: after an error, the app would insert the row a second time."""
    queue = MemoryQueue()
    alice = opened(queue=queue)
    with monkeypatch.context() as now:

        def busy(_):
            raise DbError("the client's database cannot be used now: database is locked")

        now.setattr(alice.coordinator.replica, "step", busy)
        alice["notes"].insert({"text": "hers"})
        with alice.transaction():
            alice["notes"].insert({"text": "hers too"})
    assert queue.depth() == 0
    assert alice.sync().pushed == 2


def test_a_rolled_back_transaction_leaves_nothing_in_the_queue(opened):
    queue = RecordingQueue()
    alice = opened(queue=queue)
    with suppress(ZeroDivisionError), alice.transaction():
        alice["notes"].insert(text="a")
        raise ZeroDivisionError
    assert (queue.depth(), queue.calls) == (0, [])
