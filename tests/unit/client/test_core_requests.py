"""The core's requests, their order, and the answers."""

import pytest

from lakesync.client.core import (
    CheckpointEnd,
    CheckpointFrame,
    ClientCore,
    FetchCheckpoint,
    MemoryStore,
    NoResponse,
    Wait,
)
from lakesync.model.errors import ConfigurationError
from lakesync.model.hlc import MAX_DRIFT_MS, encode
from lakesync.model.types import PushResult, SyncPull, SyncPush
from tests.unit.client.core_support import START, CoreHarness, delta, error_answer, page


def test_without_work_it_waits_without_limit():
    assert CoreHarness().core.next_request() == Wait(None)


def test_the_first_sync_fetches_a_checkpoint_then_pulls_from_its_cursor():
    me = CoreHarness()
    me.core.request_pull()
    assert me.core.next_request() == FetchCheckpoint("me")
    me.core.receive(CheckpointFrame(page(0, delta("INSERT", "r1", 0, x=1), delta("UPDATE", "r1", 5, y=2))))
    me.core.receive(CheckpointFrame(page(0, delta("INSERT", "r2", 0, x=3))))
    assert (me.row("r1"), me.row("r2"), me.core.cursor) == ({"x": 1, "y": 2}, {"x": 3}, 0)
    me.core.receive(CheckpointEnd(7 << 16))
    assert me.core.next_request() == SyncPull("me", 7 << 16, 1000, own_hlc=0)


def test_without_a_checkpoint_it_pulls_from_cursor_0():
    me = CoreHarness()
    me.core.request_pull()
    me.core.next_request()
    me.core.receive(error_answer("NOT_FOUND"))
    assert me.core.next_request() == SyncPull("me", 0, 1000)


def test_an_interrupted_checkpoint_is_followed_by_a_full_pull():
    me = CoreHarness()
    me.core.request_pull()
    me.core.next_request()
    me.core.receive(CheckpointFrame(page(0, delta("INSERT", "gone", 0, x=1), delta("INSERT", "stays", 0, x=1))))
    me.core.receive(NoResponse("connection reset"))
    me = me.restarted()
    me.after_first_pull(9 << 16, delta("DELETE", "stays", 0), delta("INSERT", "stays", 0, x=2))
    assert (me.row("gone"), me.row("stays")) == (None, {"x": 2})


def test_a_new_client_pulls_before_its_first_push_and_pushes_first_afterwards():
    me = CoreHarness()
    me.edit("r1", None, {"x": 1})
    assert isinstance(me.core.next_request(), FetchCheckpoint)
    me.core.receive(error_answer("NOT_FOUND"))
    assert isinstance(me.core.next_request(), SyncPull)
    me.core.receive(page(0))
    assert isinstance(me.core.next_request(), SyncPush)
    me.core.receive(PushResult(1, 1))
    me.edit("r2", None, {"x": 1})
    me.core.request_pull()
    assert isinstance(me.core.next_request(), SyncPush)


def test_an_app_that_writes_all_the_time_does_not_delay_pulls_for_ever():
    me = CoreHarness().after_first_pull()
    requests = []
    for number in range(20):
        me.core.request_pull()
        me.edit(f"r{number}", None, {"x": number})
        requests.append(request := me.core.next_request())
        me.core.receive(PushResult(1, 1) if isinstance(request, SyncPush) else page(1000))
    pulls = [number for number, request in enumerate(requests) if isinstance(request, SyncPull)]
    assert pulls == [8, 17]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_edits_are_not_held_back_by_a_first_pull_that_fails(is_reopened):
    me = CoreHarness().after_first_pull().restarted() if is_reopened else CoreHarness()
    me.edit("r1", None, {"x": 1})
    me.core.request_pull()
    assert not isinstance(me.core.next_request(), SyncPush)
    me.core.receive(NoResponse("the download was interrupted"))
    assert isinstance(me.core.next_request(), SyncPush)
    me.core.receive(PushResult(1, 1))
    assert me.core.next_request() == Wait(1.0)


def test_pages_are_pulled_until_the_gateway_has_no_more():
    me = CoreHarness().after_first_pull()
    me.pull_ok(2001, delta("INSERT", "r1", 0, x=1), more=True)
    assert not me.core.caught_up
    assert me.restarted().core.next_request() == SyncPull("me", 2001, 1000, own_hlc=encode(START, 0))
    assert me.core.next_request() == SyncPull("me", 2001, 2000)
    me.core.receive(page(3000))
    assert me.core.caught_up
    assert me.core.next_request() == Wait(None)


def test_a_push_carries_the_cursor():
    me = CoreHarness().after_first_pull(5 << 16)
    me.edit("r1", None, {"x": 1})
    assert me.core.next_request().last_seen_hlc == 5 << 16


def test_the_cursor_of_a_push_is_adopted_only_after_a_pull_on_this_connection():
    me = CoreHarness().after_first_pull(5 << 16)
    me.edit("r1", None, {"x": 1})
    me.push_ok(9 << 16)
    assert me.core.cursor == 9 << 16
    again = me.restarted()
    again.edit("r2", None, {"x": 1})
    again.push_ok(11 << 16)
    assert again.core.cursor == 9 << 16
    assert again.core.next_request() == SyncPull("me", 9 << 16, 1000, own_hlc=encode(START, 0))


def test_after_a_lost_pull_the_cursor_of_a_push_is_not_adopted():
    me = CoreHarness().after_first_pull(5 << 16)
    me.core.request_pull()
    me.core.next_request()
    me.core.receive(NoResponse("timeout"))
    me.edit("r1", None, {"x": 1})
    me.push_ok(9 << 16)
    assert me.core.cursor == 5 << 16


def test_resync_required_starts_a_full_pull_that_keeps_edits_and_removes_unnamed_rows():
    old = delta("INSERT", "same", 0, x=1), delta("INSERT", "gone", 0, x=1), delta("INSERT", "mine", 0, x=1, y=1)
    me = CoreHarness().after_first_pull(5 << 16, *old)
    me.edit("mine", {"x": 1, "y": 1}, {"y": 2})
    me.core.request_pull()
    me.core.next_request()
    me.core.receive(error_answer("VALIDATION_ERROR"))
    me.core.next_request()
    me.core.receive(error_answer("RESYNC_REQUIRED"))
    assert me.core.cursor == 0
    assert me.row("gone") == {"x": 1}
    assert isinstance(me.core.next_request(), FetchCheckpoint)
    me.core.receive(error_answer("NOT_FOUND"))
    assert me.core.next_request() == SyncPull("me", 0, 1000)
    me.core.receive(page((6 << 16) + 1, delta("INSERT", "same", -5, z=3), more=True))
    assert me.row("same") == {"z": 3}, "earlier pages may be from a time that the gateway lost"
    me = me.restarted()
    me.core.next_request()
    me.core.receive(page(7 << 16))
    assert (me.row("same"), me.row("gone"), me.row("mine")) == ({"z": 3}, None, {"y": 2})
    assert [edit.status for edit in me.core.edits()] == ["refused"]


def test_rows_of_a_named_source_survive_a_resync_and_do_not_move_the_cursor():
    me = CoreHarness().after_first_pull(5 << 16)
    me.core.request_pull("crm")
    assert me.core.next_request() == SyncPull("me", 5 << 16, 1000, "crm")
    me.core.receive(page(4 << 16, delta("DELETE", "a", 0), delta("INSERT", "a", 0, x=1), more=True))
    assert me.core.next_request().source == "crm"
    me.core.receive(page(4 << 16))
    assert (me.core.cursor, me.core.next_request()) == (5 << 16, Wait(None))
    me.core.request_pull()
    me.core.next_request()
    me.core.receive(error_answer("RESYNC_REQUIRED"))
    me.after_first_pull(8 << 16)
    assert me.row("a") == {"x": 1}


def test_rows_of_a_source_from_the_future_leave_the_stamps_of_edits_acceptable():
    me = CoreHarness().after_first_pull(5 << 16)
    for rows in ({"now": 3000, "later": 86_400_000}, {"soon": 7000}):
        me.core.request_pull("crm")
        me.core.next_request()
        me.core.receive(page(4 << 16, *[delta("INSERT", row, ahead, x=1) for row, ahead in rows.items()]))
    assert me.row("later") == me.row("soon") == {"x": 1}
    assert encode(START + 3000, 0) < me.edit("mine", None, {"x": 2}).delta.hlc < encode(START + MAX_DRIFT_MS, 0)
    assert me.restarted().core.next_hlc() < encode(START + MAX_DRIFT_MS, 0)


def test_an_unknown_source_is_pulled_once():
    me = CoreHarness().after_first_pull()
    me.core.request_pull("crm")
    me.core.next_request()
    me.core.receive(error_answer("NOT_FOUND"))
    assert me.core.last_error.code == "NOT_FOUND"
    assert me.core.next_request() == Wait(None)


def test_modes_push_only_and_pull_only():
    me = CoreHarness(mode="pushOnly")
    me.edit("r1", None, {"x": 1})
    me.core.request_pull()
    assert isinstance(me.core.next_request(), SyncPush)
    me.core.receive(PushResult(1, 1))
    assert me.core.next_request() == Wait(None)
    me = CoreHarness(mode="pullOnly").after_first_pull()
    me.edit("r1", None, {"x": 1})
    assert me.core.next_request() == Wait(None)
    assert me.row("r1") == {"x": 1}


def test_only_one_request_is_pending_and_only_its_answers_are_accepted():
    me = CoreHarness().after_first_pull()
    with pytest.raises(RuntimeError, match="none is pending"):
        me.core.receive(PushResult(1, 1))
    me.core.request_pull()
    me.core.next_request()
    with pytest.raises(RuntimeError, match="has no response yet"):
        me.core.next_request()
    with pytest.raises(RuntimeError, match="PushResult answers no pending request: the pending request is SyncPull"):
        me.core.receive(PushResult(1, 1))


def test_a_store_belongs_to_one_client():
    store = MemoryStore()
    CoreHarness(store).edit("r1", None, {"x": 1})
    with pytest.raises(ConfigurationError, match="belongs to client 'me' and cannot be opened as 'you'"):
        ClientCore(store, "you")


class FailingStore(MemoryStore):
    """A store whose disk is full on demand."""

    full = False

    def commit(self, changes):
        if self.full:
            raise OSError("disk full")
        super().commit(changes)


def test_a_page_that_cannot_be_stored_is_pulled_again():
    me = CoreHarness(FailingStore()).after_first_pull(5 << 16)
    me.core.request_pull()
    me.core.next_request()
    me.store.full = True
    with pytest.raises(OSError, match="disk full"):
        me.core.receive(page(6 << 16, delta("INSERT", "r1", 0, x=1)))
    me.store.full = False
    assert me.core.next_request() == SyncPull("me", 5 << 16, 1000)
    me.core.receive(page(6 << 16, delta("INSERT", "r1", 0, x=1)))
    assert me.row("r1") == {"x": 1}


def test_page_sizes_grow_while_the_gateway_has_more_pages():
    client = CoreHarness().after_first_pull()

    def asked(more):
        client.core.request_pull()
        request = client.core.next_request()
        client.core.receive(page(request.since_hlc + 256, more=more))
        return request.max_deltas

    assert [asked(more=number < 5) for number in range(6)] == [1000, 2000, 4000, 8000, 8000, 8000]
    assert asked(more=True) == 1000
    client.core.request_pull()
    client.core.next_request()
    client.core.receive(NoResponse("the network is gone"))
    client.core.reset_backoff()
    assert asked(more=False) == 1000


def test_repeated_resync_required_is_answered_with_backoff():
    me = CoreHarness().after_first_pull(5 << 16)
    me.core.request_pull()
    for began in (6, 7):
        assert isinstance(me.core.next_request(), SyncPull)
        me.core.receive(error_answer("RESYNC_REQUIRED"))
        if began == 6:
            assert isinstance(me.core.next_request(), FetchCheckpoint), "the first one is expected"
            me.core.receive(CheckpointEnd(began << 16))
    assert me.core.next_request() == Wait(30.0)
    me.seconds += 30
    me.core.next_request()
    me.core.receive(CheckpointEnd(8 << 16))
    assert me.pull_ok(9 << 16).count == 0
    me.core.request_pull()
    me.core.next_request()
    me.core.receive(error_answer("RESYNC_REQUIRED"))
    assert isinstance(me.core.next_request(), FetchCheckpoint), "the full pull was completed since then"


def test_a_reopened_file_pulls_before_it_pushes_and_sends_its_own_hlc():
    me = CoreHarness().after_first_pull(5 << 16)
    me.edit("r1", None, {"x": 1})
    me.push_ok(6 << 16)
    known = me.store.position().own_writes_up_to
    assert known == me.store.position().gateway_hlc
    back = me.restarted()
    back.edit("r2", None, {"x": 2})
    back.core.request_pull()
    assert back.core.next_request() == SyncPull("me", 6 << 16, 1000, own_hlc=known)
    back.core.receive(page(7 << 16, delta("INSERT", "r3", 5, x=1), more=True))
    back.push_ok(8 << 16)
    assert back.core.next_request().own_hlc == known, (
        "a row of others or a push does not show that all rows were received"
    )
    back.core.receive(page(9 << 16))
    back.edit("r2", {"x": 2}, {"x": 3})
    assert back.store.position().own_writes_up_to > known
    back.push_ok(10 << 16)
    back.core.request_pull()
    assert back.core.next_request().own_hlc is None


def test_edits_after_the_last_one_of_a_synchronisation_are_left_to_the_next_one():
    me = CoreHarness().after_first_pull()
    me.edit("r1", None, {"x": 1})
    last = me.core.edit_count
    assert isinstance(me.core.next_request(last), SyncPush)
    me.core.receive(PushResult(1, 1))
    me.edit("r2", None, {"x": 2})
    me.core.request_pull()
    assert isinstance(me.core.next_request(last), SyncPush), "edits go before pulls also if they are later"
    me.core.receive(PushResult(1, 1))
    assert isinstance(me.core.next_request(last), SyncPull)
    me.core.receive(page(1000))
    me.edit("r3", None, {"x": 3})
    assert me.core.next_request(last) == Wait(0)
    assert isinstance(me.core.next_request(me.core.edit_count), SyncPush)
