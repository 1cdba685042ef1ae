"""The responses of HTTP APIs: retry delays, JSON and headers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import requests

from lakesync.connectors.http_api import decode_json, int_header, retry_after
from lakesync.model.errors import AdapterError


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


def response(body: str) -> requests.Response:
    made = requests.Response()
    made._content, made.url = body.encode(), "https://user:secret@api.example/records?token=t"
    return made


def test_half_of_a_surrogate_pair_is_replaced_and_whole_pairs_are_kept():
    text = r'{"cut \ud83d": ["\ud83d\ude00", "\ude00\ud83d", "\\ud83d", 1.5, null]}'
    assert decode_json(response(text)) == {"cut \ufffd": ["\U0001f600", "\ufffd\ufffd", "\\ud83d", 1.5, None]}


@pytest.mark.parametrize("body", ["<html>", "", "9" * 5_000, "[" * 100_000])
def test_a_body_that_is_not_json_is_an_error_of_the_api(body):
    with pytest.raises(AdapterError, match=r"https://api\.example/records did not return JSON"):
        decode_json(response(body))


@pytest.mark.parametrize(
    ("text", "value"), [(" 7 ", 7), ("9" * 18, 10**18 - 1), ("9" * 5000, None), ("-1", None), ("", None), (None, None)]
)
def test_an_integer_is_read_from_a_header(text, value):
    assert int_header(text) == value
