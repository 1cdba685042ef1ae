"""The forms that `--as-of` accepts."""

import pytest

from lakesync.analysis.as_of import AsOf, format_hlc, parse_as_of
from lakesync.model.errors import ValidationError
from lakesync.model.hlc import MAX_COUNTER, encode
from lakesync.model.validation import MAX_HLC

NOON = 1_763_726_400_000  # 2025-11-21 12:00 UTC


@pytest.mark.parametrize(
    ("text", "as_of"),
    [
        ("2025-11-21T12:00", AsOf(arrival=encode(NOON, MAX_COUNTER))),
        ("2025-11-21 13:00:00+01:00", AsOf(arrival=encode(NOON, MAX_COUNTER))),
        ("2025-11-21T12:00:00.005Z", AsOf(arrival=encode(NOON + 5, MAX_COUNTER))),
        ("2025-11-21", AsOf(arrival=encode(NOON - 43_200_000, MAX_COUNTER))),
        ("9999-12-31", AsOf(arrival=MAX_HLC)),
        (str(encode(NOON, 256)), AsOf(arrival=encode(NOON, 256))),
        ("snapshot:4712345678901234567", AsOf(snapshot=4712345678901234567)),
        (f"snapshot:{encode(NOON, 0)}", AsOf(snapshot=encode(NOON, 0))),
        (format_hlc(encode(NOON, 7)), AsOf(arrival=encode(NOON, MAX_COUNTER))),
    ],
)
def test_times_arrivals_and_snapshots_are_parsed(text, as_of):
    assert parse_as_of(text) == as_of


@pytest.mark.parametrize("text", ["", "yesterday", "snapshot:x", "-5", "1960-01-01"])
def test_other_text_is_rejected_with_the_accepted_forms(text):
    with pytest.raises(ValidationError, match="--as-of"):
        parse_as_of(text)


@pytest.mark.parametrize("text", ["4712345678901234567", "20251121"])
def test_a_number_that_is_no_arrival_is_rejected_with_the_form_for_a_snapshot(text):
    with pytest.raises(ValidationError, match=f"snapshot:{text} for a snapshot, or a date with hyphens"):
        parse_as_of(text)
