"""The limits that a push is checked for are inclusive."""

import pytest
from msgspec import Raw

from lakesync.engine.checks import EngineLimits, check_push
from lakesync.model.errors import ClockDriftError, ValidationError
from lakesync.model.hlc import encode
from lakesync.model.types import ColumnValue, RowDelta, SyncPush

NOW = 1_763_596_800_000


def push(*hlcs: int) -> SyncPush:
    columns = (ColumnValue("n", Raw(b"1")),)
    deltas = [RowDelta("UPDATE", "todos", "t1", "alice", columns, hlc, f"d{n}") for n, hlc in enumerate(hlcs)]
    return SyncPush("alice", tuple(deltas))


def test_a_clock_may_be_five_seconds_ahead_and_no_more():
    check_push(push(encode(NOW + 5_000, 65_535)), {"sub": "alice"}, NOW, EngineLimits())
    with pytest.raises(ClockDriftError) as raised:
        check_push(push(encode(NOW + 5_000, 0), encode(NOW + 5_001, 0)), {"sub": "alice"}, NOW, EngineLimits())
    assert [each.delta_id for each in raised.value.rejected] == ["d1"]


def test_a_push_may_have_ten_thousand_deltas_and_no_more():
    check_push(push(*range(10_000)), {"sub": "alice"}, NOW, EngineLimits())
    with pytest.raises(ValidationError, match="10001 deltas, at most 10000"):
        check_push(push(*range(10_001)), {"sub": "alice"}, NOW, EngineLimits())
