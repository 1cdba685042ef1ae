"""What `--as-of` takes."""

import pytest

from lakesync.analysis.moments import AsOf, parse_as_of, shown
from lakesync.model.errors import ValidationError
from lakesync.model.hlc import MAX_COUNTER, encode

NOON = 1_763_726_400_000  # 2025-11-21 12:00 UTC


@pytest.mark.parametrize(
    ("text", "as_of"),
    [
        ("2025-11-21T12:00", AsOf(arrival=encode(NOON, MAX_COUNTER))),
        ("2025-11-21 13:00:00+01:00", AsOf(arrival=encode(NOON, MAX_COUNTER))),
        ("2025-11-21T12:00:00.005Z", AsOf(arrival=encode(NOON + 5, MAX_COUNTER))),
        ("2025-11-21", AsOf(arrival=encode(NOON - 43_200_000, MAX_COUNTER))),
        (str(encode(NOON, 256)), AsOf(arrival=encode(NOON, 256))),
        ("4712345678901234567", AsOf(snapshot=4712345678901234567)),
        (f"snapshot:{encode(NOON, 0)}", AsOf(snapshot=encode(NOON, 0))),
        (shown(encode(NOON, 7)), AsOf(arrival=encode(NOON, MAX_COUNTER))),
    ],
)
def test_it_is_a_time_an_arrival_or_a_snapshot(text, as_of):
    assert parse_as_of(text) == as_of


@pytest.mark.parametrize("text", ["", "yesterday", "snapshot:x", "-5", "1960-01-01"])
def test_anything_else_is_refused_with_what_it_may_be(text):
    with pytest.raises(ValidationError, match="--as-of"):
        parse_as_of(text)
