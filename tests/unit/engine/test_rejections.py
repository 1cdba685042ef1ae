"""A process remembers a bounded number of rejected rows, with bounded data for each."""

from __future__ import annotations

import pytest

from lakesync.engine.inspection import rejections
from lakesync.engine.inspection.rejections import RejectionLog
from lakesync.engine.pushing import PushRequest
from lakesync.engine.standalone_engine import open_gateway
from lakesync.model.errors import BackpressureError, ClockDriftError, Rejection, ValidationError
from lakesync.model.types import RowDelta, SyncPush


def note(
    known: RejectionLog, gateway: str, row: str, *, table: str = "todos", delta_id: str = "d", message: str = "no"
):
    delta = RowDelta("INSERT", table, row, "ann", (), 1, delta_id)
    known.record(gateway, "ann", (delta,), ValidationError("no", [Rejection(delta_id, "VALIDATION", message)]))


def test_the_latest_rejection_of_each_row_is_kept_per_gateway():
    known = RejectionLog(lambda: 5)
    note(known, "gw", "r1", message="first")
    note(known, "gw", "r1", message="second")
    found = known.latest("gw", "todos", "r1")
    assert found is not None
    assert (found.message, found.client_id, found.at_ms) == ("second", "ann", 5)
    assert known.latest("other", "todos", "r1") is None


def test_the_oldest_rejection_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(rejections, "_MAX_ROWS", 2)
    known = RejectionLog(lambda: 5)
    for row in ("r1", "r2", "r1", "r3"):
        note(known, "gw", row)
    assert [known.latest("gw", "todos", row) is not None for row in ("r1", "r2", "r3")] == [True, False, True]


@pytest.mark.parametrize("names", [{"table": "t" * 1000}, {"delta_id": "d" * 1000}, {"row": "r" * 1000}])
def test_rejections_with_invalid_names_are_not_stored(names):
    known = RejectionLog(lambda: 5)
    note(known, "gw", **{"row": "r1", **names})
    assert known.latest("gw", names.get("table", "todos"), names.get("row", "r1")) is None


def test_a_long_message_is_truncated():
    known = RejectionLog(lambda: 5)
    note(known, "gw", "r1", message="x" * 100_000)
    found = known.latest("gw", "todos", "r1")
    assert found is not None
    assert len(found.message) < 2000


def test_deltas_pushed_with_a_rejected_one_are_reported_by_its_reason():
    known = RejectionLog(lambda: 5)
    bad, good = (RowDelta("INSERT", "todos", row, "ann", (), 1, row) for row in ("bad", "good"))
    known.record("gw", "ann", (good, bad), ValidationError("no", [Rejection("bad", "SCHEMA_ERROR", "no such column")]))
    latest = {row: known.latest("gw", "todos", row) for row in ("bad", "good")}
    assert latest["bad"] is not None
    assert (latest["bad"].code, latest["bad"].message) == ("SCHEMA_ERROR", "no such column")
    assert latest["good"] is not None
    assert "in the same push, row 'bad' of table 'todos' was rejected: no such column" in latest["good"].sentence


def test_a_row_keeps_the_delta_that_caused_the_rejection_and_not_another_one_of_the_same_push():
    known = RejectionLog(lambda: 5)
    good, bad, later = (RowDelta("UPDATE", "todos", "r1", "ann", (), 1, delta_id) for delta_id in ("d1", "d2", "d3"))
    reason = Rejection("d2", "SCHEMA_ERROR", "no such column")
    known.record("gw", "ann", (good, bad, later), ValidationError("no", [reason]))
    found = known.latest("gw", "todos", "r1")
    assert found is not None
    assert (found.delta_id, found.code, found.message) == ("d2", "SCHEMA_ERROR", "no such column")


def test_deltas_with_invalid_names_do_not_use_up_the_rows_kept_of_a_push():
    known = RejectionLog(lambda: 5)
    invalid = [RowDelta("INSERT", "no table!", f"r{n}", "ann", (), 1, f"d{n}") for n in range(100)]
    valid = RowDelta("INSERT", "todos", "r1", "ann", (), 1, "d")
    known.record("gw", "ann", (*invalid, valid), BackpressureError("too much waits for the lake"))
    assert known.latest("gw", "todos", "r1") is not None


def test_a_push_rejected_for_backpressure_is_kept_for_up_to_a_hundred_rows():
    known = RejectionLog(lambda: 5)
    deltas = [RowDelta("INSERT", "todos", f"r{n}", "ann", (), 1, f"d{n}") for n in range(101)]
    known.record("gw", "ann", deltas, BackpressureError("too much waits for the lake"))
    found = known.latest("gw", "todos", "r99")
    assert found is not None
    assert found.code == "BACKPRESSURE_ERROR"
    assert known.latest("gw", "todos", "r100") is None


def test_a_later_change_hides_a_rejection_also_if_the_gateways_clock_is_ahead():
    known = RejectionLog(lambda: 5)
    note(known, "gw", "r1")
    assert known.latest("gw", "todos", "r1", changed=5 << 16) is not None
    assert known.latest("gw", "todos", "r1", changed=6 << 16) is None
    delta = RowDelta("INSERT", "todos", "r2", "ann", (), 1, "d")
    known.record("gw", "ann", (delta,), ValidationError("no", [Rejection("d", "VALIDATION", "no")]), newest=60 << 16)
    assert known.latest("gw", "todos", "r2", changed=60 << 16) is not None, (
        "it was pushed before, with a clock that was ahead"
    )
    assert known.latest("gw", "todos", "r2", changed=61 << 16) is None


def test_of_several_deltas_of_a_row_the_one_that_caused_the_rejection_is_kept():
    known = RejectionLog(lambda: 5)
    bad, good = (RowDelta("UPDATE", "todos", "r1", "ann", (), hlc, name) for hlc, name in ((1, "bad"), (2, "good")))
    known.record("gw", "ann", (bad, good), ValidationError("no", [Rejection("bad", "SCHEMA_ERROR", "no such column")]))
    found = known.latest("gw", "todos", "r1")
    assert found is not None
    assert (found.delta_id, found.message) == ("bad", "no such column")


@pytest.mark.parametrize(("trusted", "decoded"), [(False, 2), (True, 1)])
def test_a_rejected_push_is_decoded_again_only_to_be_recorded(trusted, decoded):
    calls = []
    ahead = RowDelta("INSERT", "todos", "r1", "ann", (), 1 << 62, "d")

    def receive() -> PushRequest:
        calls.append(1)
        return PushRequest(SyncPush("ann", (ahead,)), {"sub": "ann"}, trusted=trusted)

    with open_gateway("gw", background=False) as gateway:
        with pytest.raises(ClockDriftError):
            gateway.submit_push(receive).result()
        assert len(calls) == decoded
        assert (gateway.rejections.latest("gw", "todos", "r1") is None) is trusted


def test_a_push_that_cannot_be_decoded_is_decoded_once():
    calls = []

    def receive() -> PushRequest:
        calls.append(1)
        raise ValidationError("no push")

    with open_gateway("gw", background=False) as gateway, pytest.raises(ValidationError):
        gateway.submit_push(receive).result()
    assert len(calls) == 1
