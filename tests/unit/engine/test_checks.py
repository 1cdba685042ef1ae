"""What a push is checked for, whatever is stored: its limits, which are inclusive, and its ids."""

import pytest
from msgspec import Raw

from lakesync.engine.checks import MAX_PUSH, check_push
from lakesync.model.errors import ClockDriftError, ValidationError
from lakesync.model.hlc import encode
from lakesync.model.types import ColumnValue, RowDelta, SyncPush

NOW = 1_763_596_800_000


def push(*hlcs: int) -> SyncPush:
    columns = (ColumnValue("n", Raw(b"1")),)
    deltas = [RowDelta("UPDATE", "todos", "t1", "alice", columns, hlc, f"d{n}") for n, hlc in enumerate(hlcs)]
    return SyncPush("alice", tuple(deltas))


def test_a_clock_may_be_five_seconds_ahead_and_no_more():
    check_push(push(encode(NOW + 5_000, 65_535)), {"sub": "alice"}, NOW, MAX_PUSH)
    with pytest.raises(ClockDriftError) as raised:
        check_push(push(encode(NOW + 5_000, 0), encode(NOW + 5_001, 0)), {"sub": "alice"}, NOW, MAX_PUSH)
    assert [each.delta_id for each in raised.value.rejected] == ["d1"]


def test_a_push_may_have_ten_thousand_deltas_and_no_more():
    check_push(push(*range(10_000)), {"sub": "alice"}, NOW, MAX_PUSH)
    with pytest.raises(ValidationError, match="10001 deltas, at most 10000"):
        check_push(push(*range(10_001)), {"sub": "alice"}, NOW, MAX_PUSH)


@pytest.mark.parametrize(
    ("first", "second"), [("1", "1.0"), ('"é"', '"\\u00e9"'), ('{"a":1,"b":2}', '{"b": 2, "a": 1}')]
)
def test_a_delta_may_be_repeated_in_a_push_with_another_spelling(first, second):
    check_push(twice(first, second), {"sub": "alice"}, NOW, MAX_PUSH)


def test_two_different_deltas_of_a_push_must_not_have_one_id():
    with pytest.raises(ValidationError, match="have this id and differ"):
        check_push(twice("1", "true"), {"sub": "alice"}, NOW, MAX_PUSH)


def twice(*values: str) -> SyncPush:
    """A delta for each JSON text, all with the same id."""
    cells = [ColumnValue("n", Raw(value.encode())) for value in values]
    return SyncPush("alice", tuple(RowDelta("UPDATE", "todos", "t1", "alice", (cell,), NOW, "d") for cell in cells))
