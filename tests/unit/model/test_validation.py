import pytest
from hypothesis import given
from msgspec.structs import replace

from lakesync.model.types import ColumnValue, RowDelta
from lakesync.model.validation import check_address, check_keys_url, check_shape, find_malformed
from lakesync.testing import strategies

GOOD = RowDelta("UPDATE", "todos", "row", "client", (ColumnValue.of("title", 1),), 1, "id")


@given(strategies.deltas())
def test_a_well_formed_delta_passes(delta):
    assert check_shape(delta) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_id": ""}, "rowId is empty"),
        ({"row_id": "x" * 513}, "513"),
        ({"row_id": "a\0"}, "NUL"),
        ({"client_id": ""}, "clientId is empty"),
        ({"client_id": "\0"}, "clientId"),
        ({"delta_id": ""}, "deltaId"),
        ({"table": "1todos"}, "'1todos'"),
        ({"table": "todos\n"}, "todos"),
        ({"table": "x" * 65}, "at most 64"),
        ({"table": ""}, "table ''"),
        ({"hlc": -1}, "hlc -1"),
        ({"hlc": 2**63}, "hlc 9223372036854775808"),
        ({"columns": (ColumnValue.of("a b", 1),)}, "'a b'"),
        ({"columns": (ColumnValue.of("a", 1), ColumnValue.of("a", 2))}, "twice"),
        ({"op": "DELETE"}, "'title'"),
    ],
)
def test_a_malformed_delta_is_reported_with_the_reason(change, message):
    found = check_shape(replace(GOOD, **change))
    assert found.code == "VALIDATION_ERROR"
    assert found.delta_id == change.get("delta_id", "id")
    assert message in found.message
    assert find_malformed([GOOD, replace(GOOD, **change), GOOD]) == [found]


@pytest.mark.parametrize(
    "change",
    [
        {"row_id": "x" * 512},
        {"row_id": "é/\U0001f600 \n"},
        {"table": "_" * 64},
        {"hlc": 2**63 - 1},
        {"hlc": 0},
        {"op": "INSERT", "columns": ()},
        {"op": "DELETE", "columns": ()},
    ],
)
def test_values_at_the_limits_are_accepted(change):
    assert check_shape(replace(GOOD, **change)) is None
    assert find_malformed([replace(GOOD, **change), GOOD]) == []


@pytest.mark.parametrize("check", [check_address, check_keys_url])
@pytest.mark.parametrize("password", ["sesame/x", "sesame?x", "sesame#x", "sesame\u2100", "[sesame]", "[sesame"])
def test_the_message_about_an_invalid_url_contains_no_password(check, password):
    problem = check("url", f"https://ann:{password}@example.com")
    assert problem is not None
    assert "sesame" not in problem
