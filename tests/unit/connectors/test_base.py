"""The helpers that connector types share."""

import pytest

from lakesync.connectors.base import value_at


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"a": {"b": 1}}, 1),
        ({"a": {"c": 1}}, None),
        ({}, None),
        ({"a": None}, None),
        ({"a": "x"}, None),
        ({"a": [1]}, None),
    ],
)
def test_a_path_that_leads_to_nothing_has_no_value(values, found):
    assert value_at(values, ["a", "b"]) == found
