"""What an API says about when to come again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import requests

from lakesync.connectors.http_api import retry_after


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("Sun, 22 Nov 2026 10:01:30 GMT", 90.0),
        ("Sun, 22 Nov 2026 10:01:30 -0000", 90.0),
        ("Sun, 22 Nov 2026 09:00:00 GMT", 0.0),
        ("soon", None),
        ("\u00b2", None),  # a digit to `str.isdigit`, but not to `float`
        ("9" * 400, None),  # infinite as a float
        (None, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(said, seconds):
    answer = requests.Response()
    if said is not None:
        answer.headers["Retry-After"] = said
    assert retry_after(answer, lambda: datetime(2026, 11, 22, 10, tzinfo=UTC)) == seconds
