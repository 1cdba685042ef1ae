"""The life of an edit: recorded, pushed, accepted, refused, retried, dropped."""

import pytest

from lakesync.client.core import CoreLimits, LocalChange, NoResponse, RetryPolicy, Wait
from lakesync.model import hlc
from lakesync.model.errors import NotFoundError, Rejection, ValidationError
from lakesync.model.types import PushResult, SyncPull, SyncPush
from tests.unit.client.core_support import START, CoreHarness, delta, error_answer, page


def ids(push):
    return [part.delta_id for part in push.deltas]


def test_an_edit_is_visible_immediately_and_unacknowledged():
    me = CoreHarness()
    edit = me.edit("r1", None, {"x": 1, "y": None})
    assert me.row("r1") == {"x": 1, "y": None}
    assert (edit.delta.op, edit.delta.client_id, edit.status, edit.number) == ("INSERT", "me", "waiting", 1)
    assert me.edit("r1", {"x": 1}, {"x": 2}).delta.op == "UPDATE"
    assert me.edit("r1", {"x": 2, "y": None}, None).delta.op == "DELETE"
    assert me.row("r1") is None


def test_a_change_without_effect_makes_no_edit():
    me = CoreHarness()
    assert me.edit("r1", {"x": 1}, {"x": 1.0}) is None
    assert me.core.edits() == []


def test_changes_are_recorded_all_or_none():
    me = CoreHarness()
    with pytest.raises(ValidationError, match="no JSON value"):
        me.core.record([LocalChange("t", "r1", None, {"x": 1}), LocalChange("t", "r2", None, {"x": object()})])
    assert me.core.edits() == []
    assert me.row("r1") is None


def test_rows_that_the_app_has_written_itself_are_not_written_again():
    me = CoreHarness()
    changes = me.core.record([LocalChange("t", "r1", None, {"x": 1})], applied=True)
    assert changes.rows == {}
    assert len(me.core.edits()) == 1


def test_accepted_edits_are_deleted_and_their_rows_stay():
    me = CoreHarness().after_first_pull()
    me.edit("r1", None, {"x": 1})
    me.edit("r1", {"x": 1}, {"x": 2})
    request = me.core.next_request()
    assert isinstance(request, SyncPush)
    assert [part.op for part in request.deltas] == ["INSERT", "UPDATE"]
    changes = me.core.receive(PushResult(1, 2))
    assert (me.core.edits(), changes.rows, me.row("r1")) == ([], {}, {"x": 2})


def test_a_push_without_an_answer_is_repeated_first_also_after_a_restart():
    me = CoreHarness().after_first_pull()
    me.edit("r1", None, {"x": 1})
    first = me.core.next_request()
    me.core.receive(NoResponse("timeout"))
    me.edit("r2", None, {"x": 1})
    me.core.request_pull()
    assert me.core.next_request() == Wait(1.0)
    me.seconds = 1.0
    assert ids(me.core.next_request()) == ids(first)
    again = me.restarted()
    again.core.request_pull()
    assert ids(again.push_ok()) == ids(first)
    again.pull_ok(2000)
    assert [part.row_id for part in again.push_ok().deltas] == ["r2"]
    assert isinstance(again.core.next_request(), SyncPull)


def test_a_push_is_in_doubt_after_an_unclear_error_but_not_after_a_rejection():
    me = CoreHarness().after_first_pull()
    me.edit("r1", None, {"x": 1})
    me.core.next_request()
    me.core.receive(error_answer("BACKPRESSURE_ERROR", retry_after=3.0))
    assert [edit.status for edit in me.core.edits()] == ["waiting"]
    me.seconds = 3.0
    me.core.next_request()
    me.core.receive(error_answer("STAGING_UNAVAILABLE", retry_after=7.0))
    assert [edit.status for edit in me.core.edits()] == ["sent"]
    me.core.request_pull()
    assert me.core.next_request() == Wait(7.0)


@pytest.mark.parametrize("code", ["BACKPRESSURE_ERROR", "RATE_LIMITED", "AUTH_ERROR", "FORBIDDEN", "NOT_FOUND"])
@pytest.mark.parametrize("unclear", [NoResponse("timeout"), error_answer("INTERNAL_ERROR")])
def test_a_push_stays_in_doubt_if_the_gateway_later_rejects_only_its_repetition(code, unclear):
    me = CoreHarness(retry=RetryPolicy(pushes=1)).after_first_pull()
    me.edit("r1", None, {"x": 1})
    first = me.core.next_request()
    for answer in (unclear, error_answer(code), error_answer(code)):
        me.core.receive(answer)
        assert [edit.status for edit in me.core.edits()] == ["sent"]
        with pytest.raises(ValidationError, match="the gateway may have stored it"):
            me.core.drop([1])
        me.seconds += 1000
        assert ids(me.core.next_request()) == ids(first)
    me.core.receive(PushResult(2000, 1))
    assert me.core.edits() == []


def test_a_client_pulls_while_the_gateway_is_too_busy_for_a_push_in_doubt():
    me = CoreHarness().after_first_pull()
    me.edit("r1", None, {"x": 1})
    for answer in (NoResponse("timeout"), error_answer("BACKPRESSURE_ERROR", retry_after=9.0)):
        me.seconds += 1000
        me.core.next_request()
        me.core.receive(answer)
    me.core.request_pull()
    assert isinstance(me.core.next_request(), SyncPull), "a gateway that accepts no push still answers pulls"


def test_only_consecutive_overload_answers_refuse_edits():
    me = CoreHarness(retry=RetryPolicy(pushes=2)).after_first_pull()
    me.edit("r1", None, {"x": 1})
    for answer in (error_answer("RATE_LIMITED"), error_answer("AUTH_ERROR"), error_answer("BACKPRESSURE_ERROR")):
        me.seconds += 1000
        assert isinstance(me.core.next_request(), SyncPush)
        me.core.receive(answer)
    assert [edit.status for edit in me.core.edits()] == ["waiting"]
    me.seconds += 1000
    me.core.next_request()
    me.core.receive(error_answer("RATE_LIMITED"))
    assert [edit.status for edit in me.core.edits()] == ["refused"]


def test_the_push_after_refused_edits_waits_for_the_delay_of_the_gateway():
    me = CoreHarness(retry=RetryPolicy(pushes=1), limits=CoreLimits(push_deltas=1)).after_first_pull()
    me.edit("r1", None, {"x": 1})
    me.edit("r2", None, {"x": 1})
    me.core.next_request()
    me.core.receive(error_answer("RATE_LIMITED", retry_after=9.0))
    assert [edit.status for edit in me.core.edits()] == ["refused", "waiting"]
    assert me.core.next_request() == Wait(9.0)


def test_a_rejected_edit_is_refused_with_its_reason_and_the_others_continue():
    me = CoreHarness().after_first_pull()
    bad, good = me.edit("r1", None, {"x": 1}), me.edit("r2", None, {"x": 1})
    me.core.next_request()
    why = Rejection(bad.delta.delta_id, "SCHEMA_ERROR", "column 'x' is string")
    me.core.receive(error_answer("SCHEMA_ERROR", why))
    aside = me.core.edits()[0]
    assert (aside.status, aside.code, aside.message) == ("refused", "SCHEMA_ERROR", "column 'x' is string")
    assert ids(me.push_ok()) == [good.delta.delta_id]
    assert [edit.number for edit in me.restarted().core.edits()] == [bad.number]
    assert me.row("r1") == {"x": 1}, "the user still sees it"


def test_a_refused_edit_can_be_retried_or_dropped():
    me = CoreHarness().after_first_pull(1000, delta("INSERT", "r1", 0, x=1))
    edit = me.edit("r1", {"x": 1}, {"x": 2})
    for _ in range(2):
        me.core.next_request()
        me.core.receive(error_answer("SCHEMA_ERROR", Rejection(edit.delta.delta_id, "SCHEMA_ERROR", "no")))
        me.core.retry([edit.number])
    assert me.core.edits() == [edit]
    changes = me.core.drop([edit.number])
    assert me.row("r1") == {"x": 1}
    assert changes.tables == {"t"}
    with pytest.raises(NotFoundError, match=f"edit {edit.number} is not in the outbox"):
        me.core.drop([edit.number])
    with pytest.raises(NotFoundError, match=f"edit {edit.number} is not refused"):
        me.core.retry([edit.number])


def test_an_edit_that_the_gateway_may_have_cannot_be_dropped():
    me = CoreHarness().after_first_pull()
    edit = me.edit("r1", None, {"x": 1})
    me.core.next_request()
    with pytest.raises(ValidationError, match="wait for the response"):
        me.core.drop([edit.number])


def test_a_push_rejected_without_names_is_halved_until_the_rejected_edit_is_alone():
    me = CoreHarness().after_first_pull()
    edits = [me.edit(f"r{place}", None, {"x": place}) for place in range(5)]
    sizes = []
    while not isinstance(request := me.core.next_request(), Wait):
        if isinstance(request, SyncPull):
            me.core.receive(page(1000))
            continue
        sizes.append(len(request.deltas))
        fits = edits[3].delta.delta_id not in ids(request)
        me.core.receive(PushResult(1, len(request.deltas)) if fits else error_answer("VALIDATION_ERROR"))
    assert [(edit.number, edit.code) for edit in me.core.edits()] == [(4, "VALIDATION_ERROR")]
    assert sizes[:2] == [5, 2]


def test_an_invalid_token_refuses_no_edit_and_delays_requests_until_the_backoff_is_reset():
    me = CoreHarness().after_first_pull()
    me.edit("r1", None, {"x": 1})
    me.core.next_request()
    me.core.receive(error_answer("AUTH_ERROR"))
    assert me.core.last_error.code == "AUTH_ERROR"
    assert me.core.next_request() == Wait(30.0)
    me.core.reset_backoff()
    assert isinstance(me.core.next_request(), SyncPush)


def test_a_push_is_limited_in_edits_and_bytes():
    me = CoreHarness(limits=CoreLimits(push_deltas=2, push_bytes=1000)).after_first_pull()
    for place in range(3):
        me.edit(f"r{place}", None, {"x": 1})
    me.edit("r3", None, {"x": "long" * 500})
    me.edit("r4", None, {"x": 1})
    assert [[part.row_id for part in me.push_ok().deltas] for _ in range(4)] == [["r0", "r1"], ["r2"], ["r3"], ["r4"]]


def test_delays_grow_to_thirty_seconds_and_reset_after_success():
    me = CoreHarness().after_first_pull()
    me.edit("r1", None, {"x": 1})
    waits = []
    for _ in range(7):
        me.core.next_request()
        me.core.receive(NoResponse("no route to host"))
        waits.append(me.core.next_request().seconds)
        me.seconds += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    me.push_ok()
    me.edit("r1", {"x": 1}, {"x": 2})
    me.push_ok()
    assert me.core.edits() == []


def test_edits_made_while_the_clock_was_ahead_get_new_stamps_once_it_is_right():
    me = CoreHarness().after_first_pull(1000, delta("INSERT", "r1", 0, x=0))
    me.wall.advance(3_600_000)
    early = me.edit("r1", {"x": 0}, {"x": 1})
    me.core.next_request()
    me.core.receive(error_answer("CLOCK_DRIFT", Rejection(early.delta.delta_id, "CLOCK_DRIFT", "3600000 ms ahead")))
    me.edit("r1", {"x": 1}, {"y": 1})
    assert [edit.status for edit in me.core.edits()] == ["refused", "waiting"]
    me.wall.advance(-3_600_000)
    me.edit("r1", {"x": 1, "y": 1}, {"x": 2})
    push = me.core.next_request()
    assert [part.columns[0].decoded() for part in push.deltas] == [1, 1, 2]
    stamps = [part.hlc for part in push.deltas]
    assert stamps == sorted(stamps)
    assert hlc.decode(stamps[-1])[0] <= START + 1
    assert me.row("r1") == {"x": 2, "y": 1}


def test_edits_keep_their_order_if_an_earlier_one_is_in_doubt_when_the_clock_becomes_right():
    me = CoreHarness().after_first_pull(1000, delta("INSERT", "r1", 0, x=0))
    me.wall.advance(3_600_000)
    first = me.edit("r1", {"x": 0}, {"x": 1})
    me.core.next_request()
    me.core.receive(NoResponse("timeout"))
    me.edit("r1", {"x": 1}, {"x": 2})
    me.wall.advance(-3_600_000)
    me.seconds = 1000
    assert ids(me.core.next_request()) == [first.id]
    assert me.row("r1") == {"x": 2}
    me.core.receive(error_answer("CLOCK_DRIFT", Rejection(first.id, "CLOCK_DRIFT", "3600000 ms ahead")))
    assert [part.columns[0].decoded() for part in me.push_ok().deltas] == [1, 2]
    assert (me.core.edits(), me.row("r1")) == ([], {"x": 2})


def test_an_edit_refused_for_drift_is_pushed_again_once_the_gateways_clock_has_reached_its_stamp():
    me = CoreHarness().after_first_pull()
    me.wall.advance(10_000)
    early = me.edit("r1", None, {"x": 1})
    me.core.next_request()
    me.core.receive(error_answer("CLOCK_DRIFT", Rejection(early.id, "CLOCK_DRIFT", "10000 ms ahead")))
    me.wall.advance(9_000)
    me.core.retry_drifted(10.0)
    assert [edit.status for edit in me.core.edits()] == ["refused"], "this machine's clock is still ahead"
    me.wall.advance(1_000)
    me.core.retry_drifted(10.0)
    assert ids(me.push_ok()) == [early.id]


def test_edits_are_stamped_above_every_observed_hlc_also_after_the_clock_was_set_back():
    me = CoreHarness().after_first_pull(1000, delta("INSERT", "r1", 4_000, x=1))
    first = me.edit("r1", {"x": 1}, {"x": 2})
    again = me.restarted()
    again.wall.advance(-86_400_000)
    second = again.edit("r1", {"x": 2}, {"x": 3})
    assert hlc.encode(START + 4_000, 0) < first.delta.hlc < second.delta.hlc
    assert again.row("r1") == {"x": 3}


def test_a_push_after_the_clock_was_ahead_carries_new_stamps():
    me = CoreHarness().after_first_pull()
    me.wall.advance(3_600_000)
    me.edit("r1", None, {"x": 1})
    me.wall.advance(-3_600_000)
    (sent,) = me.core.next_request().deltas
    assert hlc.decode(sent.hlc)[0] <= START + 1
    assert me.row("r1") == {"x": 1}
