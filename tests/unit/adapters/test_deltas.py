"""Queries of deltas."""

from lakesync.adapters.deltas import queries_of_rows


def test_a_row_that_is_named_several_times_is_in_one_query():
    rows = [("g", str(number)) for number in range(700)]
    queries = list(queries_of_rows("t", rows * 2))
    assert [row_id for query in queries for row_id in query.rows] == [row_id for _, row_id in rows]
