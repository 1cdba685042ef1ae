"""What a push of many deltas of one row costs the thread that every gateway's pushes go through."""

from __future__ import annotations

import time

from lakesync.lww import RowMerge, RowState
from lakesync.types import ColumnValue, RowDelta


def cost(count: int) -> float:
    """Seconds of the processor for so many deltas, each of a column of its own, newest first and then again."""
    deltas = [
        RowDelta("UPDATE", "t", "r", "c", (ColumnValue.of(f"c{n}", n),), count - n, f"id{n}") for n in range(count)
    ]
    merge = RowMerge(RowState())
    began = time.process_time()
    for delta in (*deltas, *deltas):
        merge.merge(delta)
    assert len(merge.state().live) == count
    return time.process_time() - began


def test_deltas_of_one_row_cost_what_they_are_and_not_their_square():
    few, many = (min(cost(count) for _ in range(5)) for count in (1_000, 8_000))
    assert many < few * 24  # eight times as many; their square would be 64 times as much
