"""K1, R5: a frame is filtered to exactly the rows that the rules show, although most rows are never decoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.checkpoint_frames import visible_rows
from lakesync.model.delta import jcs
from lakesync.model.types import ColumnValue, RowDelta, SyncResponse
from lakesync.rules.model import Bucket, Filter, SyncRules, matches, text_of
from lakesync.testing import strategies
from lakesync.wire.protobuf import decode_response, encode_response

rows = st.dictionaries(st.sampled_from(["x", "y", "z"]), strategies.filter_values, max_size=3)


def spelled(table, number, row):
    """A row's deltas as the pipeline frames them: INSERT first, then an UPDATE for each further stamp."""
    cells = [ColumnValue(column, Raw(jcs(value).encode())) for column, value in row.items()]
    groups = [tuple(cells[:2]), *((cell,) for cell in cells[2:])]
    return [
        RowDelta("UPDATE" if place else "INSERT", table, f"{number}", "c", group, 7 + place, f"id-{number}-{place}")
        for place, group in enumerate(groups)
    ]


@given(
    strategies.rules(),
    st.sampled_from(["t", "u"]),
    st.lists(rows, max_size=6),
    strategies.claims,
)
def test_k1_a_filtered_frame_has_exactly_the_visible_rows(rules, table, given_rows, claims):
    rules = rules if rules.buckets else SyncRules(1, ())
    framed = [spelled(table, number, row) for number, row in enumerate(given_rows)]
    message = encode_response(SyncResponse(tuple(delta for row in framed for delta in row), 512))
    expected = [
        delta
        for row, deltas in zip(given_rows, framed, strict=True)
        if matches(rules, table, row, claims)
        for delta in deltas
    ]
    shown = visible_rows(message, rules, claims) if rules.buckets else message
    if expected:
        assert shown == encode_response(SyncResponse(tuple(expected), 512))
        assert decode_response(shown).deltas == tuple(expected)
    elif rules.buckets:
        assert shown == b""


@pytest.mark.parametrize("op", ["eq", "in"])
@pytest.mark.parametrize("value", ["5", 5, 1.5, True, None, ["a"], {"b": 1}])
def test_a_value_of_any_type_is_visible_by_its_text(value, op):
    rules = SyncRules(1, (Bucket("b", (), (Filter("x", op, "jwt:team"),)),))
    message = encode_response(SyncResponse(tuple(spelled("t", 1, {"x": value})), 512))
    assert visible_rows(message, rules, {"team": text_of(value)}) == message


def test_a_claim_that_is_not_valid_unicode_shows_nothing():
    rule = Bucket("b", (), (Filter("x", "eq", "jwt:team"),))
    message = encode_response(SyncResponse(tuple(spelled("t", 1, {"x": "a"})), 512))
    assert visible_rows(message, SyncRules(1, (rule,)), {"team": "\ud800"}) == b""
    assert visible_rows(message, SyncRules(1, (rule,)), {"team": ["b", "a"]}) == message
