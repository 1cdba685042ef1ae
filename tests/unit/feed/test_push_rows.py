"""The rows that would result from a push, computed before it is committed."""

from __future__ import annotations

from lakesync.feed.push_rows import LARGE_BYTES, by_row, too_large_rows
from tests.conformance.book import make_delta


def test_a_small_value_does_not_hide_a_large_one_of_the_same_column() -> None:
    large, small = make_delta("a", 20, "r", x="a" * LARGE_BYTES), make_delta("a", 10, "r", x="")
    size = LARGE_BYTES + len('""')
    for deltas in ([large, small], [small, large]):
        rows = by_row(deltas)
        assert too_large_rows({}, rows, size - 1) == {("notes", "r"): size}
        assert too_large_rows({}, rows, size) == {}
