"""Deltas that an app pushes into a queue itself."""

from __future__ import annotations

import pytest

import lakesync
from lakesync.client import MemoryQueue, SyncQueue, UnreachableError
from lakesync.model.errors import BackpressureError, ForbiddenError, Rejection, SchemaError, ValidationError
from tests.unit.client.queue_support import NOTES, RecordingTransport, delta, rows_there

SCHEMAS = [NOTES]


def test_deltas_pushed_into_a_custom_queue_are_sent_unchanged(opened, gateway):
    queue = MemoryQueue()
    for row_id in "xy":
        queue.push(delta(row_id))
    transport = RecordingTransport(gateway)
    alice = opened(queue=queue, transport=transport)
    alice["notes"].insert({"text": "mine"}, row_id="m")
    transport.error = UnreachableError("offline")
    with pytest.raises(UnreachableError):
        alice.sync()
    transport.error = None
    for entry in queue._entries.values():
        entry.retry_after = None
    assert alice.sync().pushed == 3
    assert rows_there(gateway) == {"x", "y", "m"}
    assert queue.depth() == 0


def test_edits_of_a_client_without_the_queue_are_pushed_at_the_next_sync(opened, gateway):
    queue = MemoryQueue()
    alice = opened(queue=queue)
    alice["notes"].insert({"text": "a"}, row_id="a")
    other = opened()
    other["notes"].insert({"text": "b"}, row_id="b")
    other["notes"].insert({"text": "c"}, row_id="c")
    first, _, last = other.pending()
    assert alice.sync().pushed == 3
    assert rows_there(gateway) == {"a", "b", "c"}
    alice["notes"].insert({"text": "d"}, row_id="d")
    other.drop(other.pending()[0].number)
    assert queue.depth() == 1
    assert alice.sync().pushed == 0
    assert (queue.depth(), alice.pending(), first.number, last.number) == (0, [], 1, 3)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_rejected_delta_of_the_app_does_not_block_the_others(opened, gateway, is_named):
    class Transport(RecordingTransport):
        def push(self, push):
            invalid = [Rejection(each.delta_id, "SCHEMA_ERROR", "no") for each in push.deltas if each.row_id == "bad"]
            if invalid:
                self.pushed.append(["bad"])
                raise SchemaError("no", invalid if is_named else ())
            return super().push(push)

    queue, transport = MemoryQueue(), Transport(gateway)
    for row_id in ("x", "bad", "y", "z"):
        queue.push(delta(row_id))
    alice, rejected = opened(queue=queue, transport=transport), []
    alice.on("onRejected", rejected.append)
    report = alice.sync()
    assert (report.pushed, queue.depth(), rows_there(gateway)) == (3, 0, {"x", "y", "z"})
    assert [(each.delta.row_id, each.code, each.number) for each in report.refused] == [("bad", "SCHEMA_ERROR", 0)]
    assert rejected == [report.refused]


def test_deltas_of_the_app_stay_in_the_queue_if_the_gateway_rejects_the_client(opened, gateway):
    queue, transport = MemoryQueue(), RecordingTransport(gateway)
    for row_id in "xy":
        queue.push(delta(row_id))
    alice = opened(queue=queue, transport=transport)
    transport.error = ForbiddenError("another client's token")
    with pytest.raises(ForbiddenError):
        alice.sync()
    assert (queue.depth(), transport.pushed) == (2, [["x", "y"]])


def test_a_later_push_of_edits_does_not_hide_that_deltas_of_the_app_were_not_pushed(opened, gateway):
    class Transport(RecordingTransport):
        def push(self, push):
            if push.deltas[0].row_id == "x":
                raise BackpressureError("full")
            return super().push(push)

    queue = MemoryQueue()
    queue.push(delta("x"))
    alice = opened(queue=queue, transport=Transport(gateway))
    alice["notes"].insert({"text": "mine"}, row_id="m")
    with pytest.raises(BackpressureError):
        alice.sync()
    assert (queue.depth(), rows_there(gateway)) == (1, {"m"})


def test_the_outbox_accepts_deltas_that_the_app_may_send_itself(opened, gateway):
    alice = opened()
    queue = alice.coordinator.queue
    assert isinstance(queue, SyncQueue)
    alice["notes"].insert({"text": "a"}, row_id="a")
    entered = queue.push(delta("b", "entered"))
    assert alice["notes"]["b"]["text"] == "entered"
    assert queue.push(delta("b", "entered")) == entered
    first, second = queue.peek(2)
    assert (first.delta.row_id, second.id) == ("a", entered.id)
    queue.mark_sending([first.id])
    queue.nack([first.id])
    queue.mark_sending([first.id])
    gateway.handle_push(lakesync.SyncPush("alice", (first.delta,)))
    queue.ack([first.id])
    assert [edit.id for edit in alice.pending()] == [entered.id]
    alice["notes"].insert({"text": "c"}, row_id="c")
    queue.clear()
    assert (queue.depth(), [row["row_id"] for row in alice["notes"]]) == (0, ["a"])
    queue.push(delta("b", "again", hlc=1 << 51))
    alice.sync()
    assert rows_there(gateway) == {"a", "b"}
    for wrong in (delta("d", client="bob"), delta("")):
        with pytest.raises(ValidationError):
            queue.push(wrong)
