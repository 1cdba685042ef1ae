"""Values of a cursor column: which are times, their order, and when a value is settled."""

from datetime import datetime

import pytest

from lakesync.connectors.sql.cursor_column import greater, settle, start_value
from lakesync.connectors.sql.reader import AgeHorizon, TransactionHorizon


@pytest.mark.parametrize("text", ["20240115", "2024-W03-1", "20240115T101500", "v1"])
def test_a_text_that_is_not_a_formatted_time_is_compared_as_text(text):
    assert start_value({"settled": text, "pending": []}, 60_000) == text
    assert settle(None, AgeHorizon(600), text)["settled"] == text


def test_a_poll_rereads_a_lookback_before_its_last_time():
    cursor = {"settled": "2024-01-15T10:15:00", "pending": []}
    assert start_value(cursor, 60_000) == datetime(2024, 1, 15, 10, 14)  # noqa: DTZ001 as a database without zones
    assert settle(None, AgeHorizon(60), "2024-01-15T10:15:00Z")["settled"] == "2024-01-15T10:14:00Z"


@pytest.mark.parametrize("other", ["2024-01-15T10:15:00+00:00", "2024-01-15 10:15:00Z", "2024-01-15T11:15:00+01:00"])
def test_a_pending_value_settles_when_the_same_time_was_reached_in_another_form(other):
    cursor = {"settled": None, "pending": [[5, "2024-01-15T10:15:00Z"]]}
    assert settle(cursor, TransactionHorizon(oldest_open=9, next=9), other)["settled"] == "2024-01-15T10:15:00Z"


def test_the_greater_value_is_returned():
    assert greater("2024-01-15T10:15:00+02:00", "2024-01-15T09:00:00Z") == "2024-01-15T09:00:00Z"
    assert greater("2024-01-15", "2024-01-15T00:00:01Z") == "2024-01-15T00:00:01Z"
    assert (greater(None, 1), greater(2, None), greater(1, 2), greater(None, None)) == (1, 2, 2, None)
    assert greater("9", "20240115") == "9"
