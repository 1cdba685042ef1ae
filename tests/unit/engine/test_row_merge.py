"""The cost of a push with many deltas of one row, in the thread that commits every gateway's pushes."""

from __future__ import annotations

import sys
from types import FrameType

from lakesync.model import merge as lww
from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, RowDelta


def steps(count: int) -> int:
    """The number of lines that a merge of these deltas executes: one for each column, newest first, then repeated."""
    deltas = [
        RowDelta("UPDATE", "t", "r", "c", (ColumnValue.of(f"c{n}", n),), count - n, f"id{n}") for n in range(count)
    ]
    state = RowState()
    seen = 0

    def count_line(frame: FrameType, *_: object) -> object:
        nonlocal seen
        if frame.f_code.co_filename != lww.__file__:
            return None
        seen += 1
        return count_line

    before = sys.gettrace()
    sys.settrace(count_line)
    try:
        for delta in (*deltas, *deltas):
            state.merge(delta)
    finally:
        sys.settrace(before)
    assert len(state.live) == count
    return seen


def test_the_cost_of_a_merge_does_not_grow_with_the_number_of_deltas():
    steps(800)  # from here on, the names of columns are known
    assert steps(800) == 8 * steps(100)


def test_equality_and_inequality_of_states_agree():
    one, other = RowState(), RowState()
    assert not one != other  # noqa: SIM202 both operators are asked
    one.merge(RowDelta("INSERT", "t", "r", "c", (), 1, "id"))
    assert one != other
