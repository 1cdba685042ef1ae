"""What a client asks, in which order, and what it does with the answers."""

import pytest

from lakesync.client.core import CheckpointEnd, ClientCore, FetchCheckpoint, Frame, Lost, MemoryStore, Wait
from lakesync.model.errors import ConfigurationError
from lakesync.model.hlc import encode
from lakesync.model.types import PushResult, SyncPull, SyncPush
from tests.unit.client.core_support import START, Handle, delta, page, refused


def test_with_nothing_to_do_it_waits_without_end():
    assert Handle().core.next_request() == Wait(None)


def test_the_first_sync_asks_for_a_checkpoint_then_pulls_from_its_cursor():
    me = Handle()
    me.core.sync()
    assert me.core.next_request() == FetchCheckpoint("me")
    me.core.receive(Frame(page(0, delta("INSERT", "r1", 0, x=1), delta("UPDATE", "r1", 5, y=2))))
    me.core.receive(Frame(page(0, delta("INSERT", "r2", 0, x=3))))
    assert (me.row("r1"), me.row("r2"), me.core.cursor) == ({"x": 1, "y": 2}, {"x": 3}, 0)
    me.core.receive(CheckpointEnd(7 << 16))
    assert me.core.next_request() == SyncPull("me", 7 << 16, 1000, own_hlc=0)


def test_without_a_checkpoint_it_pulls_from_nothing():
    me = Handle()
    me.core.sync()
    me.core.next_request()
    me.core.receive(refused("NOT_FOUND"))
    assert me.core.next_request() == SyncPull("me", 0, 1000)


def test_a_checkpoint_that_breaks_off_is_made_good_by_a_walk_from_nothing():
    me = Handle()
    me.core.sync()
    me.core.next_request()
    me.core.receive(Frame(page(0, delta("INSERT", "gone", 0, x=1), delta("INSERT", "stays", 0, x=1))))
    me.core.receive(Lost("connection reset"))
    me = me.restarted()
    me.greeted(9 << 16, delta("DELETE", "stays", 0), delta("INSERT", "stays", 0, x=2))
    assert (me.row("gone"), me.row("stays")) == (None, {"x": 2})


def test_a_client_pulls_before_its_first_push_and_pushes_first_from_then_on():
    me = Handle()
    me.edit("r1", None, {"x": 1})
    assert isinstance(me.core.next_request(), FetchCheckpoint)
    me.core.receive(refused("NOT_FOUND"))
    assert isinstance(me.core.next_request(), SyncPull)
    me.core.receive(page(0))
    assert isinstance(me.core.next_request(), SyncPush)
    me.core.receive(PushResult(1, 1))
    me.edit("r2", None, {"x": 1})
    me.core.sync()
    assert isinstance(me.core.next_request(), SyncPush)


def test_pages_follow_until_nothing_is_left():
    me = Handle().greeted()
    me.pull_ok(2001, delta("INSERT", "r1", 0, x=1), more=True)
    assert not me.core.complete
    assert me.restarted().core.next_request() == SyncPull("me", 2001, 1000, own_hlc=encode(START, 0))
    assert me.core.next_request() == SyncPull("me", 2001, 2000)
    me.core.receive(page(3000))
    assert me.core.complete
    assert me.core.next_request() == Wait(None)


def test_a_push_carries_the_cursor_as_what_was_last_seen():
    me = Handle().greeted(5 << 16)
    me.edit("r1", None, {"x": 1})
    assert me.core.next_request().last_seen_hlc == 5 << 16


def test_the_cursor_of_a_push_is_taken_only_after_a_pull_of_this_connection():
    me = Handle().greeted(5 << 16)
    me.edit("r1", None, {"x": 1})
    me.push_ok(9 << 16)
    assert me.core.cursor == 9 << 16
    again = me.restarted()
    again.edit("r2", None, {"x": 1})
    again.push_ok(11 << 16)
    assert again.core.cursor == 9 << 16
    assert again.core.next_request() == SyncPull("me", 9 << 16, 1000, own_hlc=encode(START, 0))


def test_after_a_lost_pull_the_cursor_of_a_push_is_not_taken():
    me = Handle().greeted(5 << 16)
    me.core.sync()
    me.core.next_request()
    me.core.receive(Lost("timeout"))
    me.edit("r1", None, {"x": 1})
    me.push_ok(9 << 16)
    assert me.core.cursor == 5 << 16


def test_a_cursor_that_means_nothing_starts_a_walk_that_keeps_edits_and_removes_what_it_does_not_name():
    old = delta("INSERT", "same", 0, x=1), delta("INSERT", "gone", 0, x=1), delta("INSERT", "mine", 0, x=1, y=1)
    me = Handle().greeted(5 << 16, *old)
    me.edit("mine", {"x": 1, "y": 1}, {"y": 2})
    me.core.sync()
    me.core.next_request()
    me.core.receive(refused("VALIDATION_ERROR"))
    me.core.next_request()
    me.core.receive(refused("RESYNC_REQUIRED"))
    assert me.core.cursor == 0
    assert me.row("gone") == {"x": 1}
    assert isinstance(me.core.next_request(), FetchCheckpoint)
    me.core.receive(refused("NOT_FOUND"))
    assert me.core.next_request() == SyncPull("me", 0, 1000)
    me.core.receive(page((6 << 16) + 1, delta("INSERT", "same", -5, z=3), more=True))
    assert me.row("same") == {"z": 3}, "what it held may be of a time that the gateway lost"
    me = me.restarted()
    me.core.next_request()
    me.core.receive(page(7 << 16))
    assert (me.row("same"), me.row("gone"), me.row("mine")) == ({"z": 3}, None, {"y": 2})
    assert [edit.status for edit in me.core.edits()] == ["refused"]


def test_rows_of_a_named_source_survive_a_new_start_and_leave_the_cursor():
    me = Handle().greeted(5 << 16)
    me.core.sync("crm")
    assert me.core.next_request() == SyncPull("me", 5 << 16, 1000, "crm")
    me.core.receive(page(4 << 16, delta("DELETE", "a", 0), delta("INSERT", "a", 0, x=1), more=True))
    assert me.core.next_request().source == "crm"
    me.core.receive(page(4 << 16))
    assert (me.core.cursor, me.core.next_request()) == (5 << 16, Wait(None))
    me.core.sync()
    me.core.next_request()
    me.core.receive(refused("RESYNC_REQUIRED"))
    me.greeted(8 << 16)
    assert me.row("a") == {"x": 1}


def test_an_unknown_source_is_asked_once():
    me = Handle().greeted()
    me.core.sync("crm")
    me.core.next_request()
    me.core.receive(refused("NOT_FOUND"))
    assert me.core.trouble.code == "NOT_FOUND"
    assert me.core.next_request() == Wait(None)


def test_modes_push_only_and_pull_only():
    me = Handle(mode="pushOnly")
    me.edit("r1", None, {"x": 1})
    me.core.sync()
    assert isinstance(me.core.next_request(), SyncPush)
    me.core.receive(PushResult(1, 1))
    assert me.core.next_request() == Wait(None)
    me = Handle(mode="pullOnly").greeted()
    me.edit("r1", None, {"x": 1})
    assert me.core.next_request() == Wait(None)
    assert me.row("r1") == {"x": 1}


def test_one_request_at_a_time_and_only_answers_to_it():
    me = Handle().greeted()
    with pytest.raises(RuntimeError, match="asked for by nobody"):
        me.core.receive(PushResult(1, 1))
    me.core.sync()
    me.core.next_request()
    with pytest.raises(RuntimeError, match="under way"):
        me.core.next_request()
    with pytest.raises(RuntimeError, match="PushResult is no answer to SyncPull"):
        me.core.receive(PushResult(1, 1))


def test_a_store_belongs_to_one_client():
    store = MemoryStore()
    Handle(store).edit("r1", None, {"x": 1})
    with pytest.raises(ConfigurationError, match="belongs to client 'me', not 'you'"):
        ClientCore(store, "you")


class FailingStore(MemoryStore):
    """A store whose disk is full on demand."""

    full = False

    def commit(self, changes):
        if self.full:
            raise OSError("disk full")
        super().commit(changes)


def test_a_page_that_cannot_be_stored_is_asked_for_again():
    me = Handle(FailingStore()).greeted(5 << 16)
    me.core.sync()
    me.core.next_request()
    me.store.full = True
    with pytest.raises(OSError, match="disk full"):
        me.core.receive(page(6 << 16, delta("INSERT", "r1", 0, x=1)))
    me.store.full = False
    assert me.core.next_request() == SyncPull("me", 5 << 16, 1000)
    me.core.receive(page(6 << 16, delta("INSERT", "r1", 0, x=1)))
    assert me.row("r1") == {"x": 1}


def test_pages_grow_while_there_is_more():
    client = Handle().greeted()

    def asked(more):
        client.core.sync()
        request = client.core.next_request()
        client.core.receive(page(request.since_hlc + 256, more=more))
        return request.max_deltas

    assert [asked(more=number < 5) for number in range(6)] == [1000, 2000, 4000, 8000, 8000, 8000]
    assert asked(more=True) == 1000
    client.core.sync()
    client.core.next_request()
    client.core.receive(Lost("the network is gone"))
    client.core.hurry()
    assert asked(more=False) == 1000


def test_a_client_that_is_sent_back_to_the_start_again_and_again_takes_its_time():
    me = Handle().greeted(5 << 16)
    me.core.sync()
    for began in (6, 7):
        assert isinstance(me.core.next_request(), SyncPull)
        me.core.receive(refused("RESYNC_REQUIRED"))
        if began == 6:
            assert isinstance(me.core.next_request(), FetchCheckpoint), "once it may happen"
            me.core.receive(CheckpointEnd(began << 16))
    assert me.core.next_request() == Wait(30.0)
    me.seconds += 30
    me.core.next_request()
    me.core.receive(CheckpointEnd(8 << 16))
    assert me.pull_ok(9 << 16).count == 0
    me.core.sync()
    me.core.next_request()
    me.core.receive(refused("RESYNC_REQUIRED"))
    assert isinstance(me.core.next_request(), FetchCheckpoint), "it came to an end since"


def test_a_file_that_was_just_opened_is_pulled_into_before_it_is_pushed_from_and_says_what_of_its_own_it_has():
    me = Handle().greeted(5 << 16)
    me.edit("r1", None, {"x": 1})
    me.push_ok(6 << 16)
    known = me.store.position().own
    assert known == me.store.position().seen
    back = me.restarted()
    back.edit("r2", None, {"x": 2})
    back.core.sync()
    assert back.core.next_request() == SyncPull("me", 6 << 16, 1000, own_hlc=known)
    back.core.receive(page(7 << 16, delta("INSERT", "r3", 5, x=1), more=True))
    back.push_ok(8 << 16)
    assert back.core.next_request().own_hlc == known, "neither what others wrote nor a push says that all is here"
    back.core.receive(page(9 << 16))
    back.edit("r2", {"x": 2}, {"x": 3})
    assert back.store.position().own > known
    back.push_ok(10 << 16)
    back.core.sync()
    assert back.core.next_request().own_hlc is None
