import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.wire.malformed import check_values

GOOD = [
    "1",
    "-1.5e300",
    '"text"',
    "true",
    "null",
    "[1,[2]]",
    '{"a":"\\u00e9"}',
    '"\\ud83d\\ude00"',
    '"\\\\u"',
    "9" * 300,
]
BAD = ['"\\ud800"', "1e999", "9" * 400, "[" * 200 + "]" * 200, '"\xff"', '["\\udc00"]']


def delta(name: str, *texts: str) -> RowDelta:
    columns = tuple(ColumnValue(f"c{n}", msgspec.Raw(text.encode("latin-1"))) for n, text in enumerate(texts))
    return RowDelta("UPDATE", "t", "r", "c", columns, 1, name)


def test_valid_values_are_accepted_together():
    check_values([delta("a", *GOOD), delta("b"), delta("c", *GOOD)])


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("others", [["1"], GOOD], ids=["plain", "mixed"])
def test_an_invalid_value_among_valid_ones_is_rejected(text, others):
    with pytest.raises(ValidationError) as refused:
        check_values([delta("a", *others), delta("b", "1", text), delta("c", *others)])
    assert [found.delta_id for found in refused.value.rejected] == ["b"]
    assert "deltas[1], column 'c1'" in refused.value.rejected[0].message


FRAGMENTS = ['"a', 'b"', "1,2", '"', "", "1,\n2", "[1", "2]", '"text"', "null"]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6))
@example(['"a', 'b"', "1,2"])
@example(['"', '"', "1,\n2"])
def test_values_are_accepted_together_only_if_each_is_accepted_alone(texts):
    """Values that are JSON only if they are joined, such as `"a` and `b"`, would make a body of the log unreadable."""
    valid = all(_is_accepted([delta("a", text)]) for text in texts)
    assert _is_accepted([delta("a", *texts)]) is valid


def _is_accepted(deltas: list[RowDelta]) -> bool:
    try:
        check_values(deltas)
    except ValidationError:
        return False
    return True
