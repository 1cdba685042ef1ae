"""Deltas as columns of the lake's history."""

from __future__ import annotations

import msgspec
import pytest

from lakesync.model.delta import jcs_raw
from lakesync.model.errors import ValidationError
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.wire.history import DELTA_FIELDS, delta_columns

VALUES = [
    "0", "-0", "1.50", "1e3", "-12", "123456789012345678901", "true", "null", '""', '"\\""', '"\\\\"', '"\\\\\\""',
    '"}],["', '{"column":"x","value":1}', '"\\u00e9é"', '"a\\nb"', "{}", "[]", '{ "b" : 1, "a":[ ] }',
]  # fmt: skip


def delta(op, row_id, *values):
    cells = tuple(ColumnValue(f"c{number}", msgspec.Raw(text.encode())) for number, text in enumerate(values))
    return RowDelta(op, "t", row_id, "client", cells, 7, f"id of {row_id}")


def test_values_are_stored_in_their_canonical_form():
    deltas = [delta("INSERT", "r1", *VALUES), delta("UPDATE", "r2"), delta("UPDATE", "r3", "1.0")]
    names = [name for name, _ in DELTA_FIELDS]
    found = dict(zip(names, (column.to_pylist() for column in delta_columns(deltas)), strict=True))
    canonical = [(f"c{number}", jcs_raw(text.encode())) for number, text in enumerate(VALUES)]
    assert found["columns"] == [canonical, [], [("c0", "1")]]
    assert found["width"] == [len(VALUES), 0, 1]
    assert (found["row_id"], found["hlc"]) == (["r1", "r2", "r3"], [7, 7, 7])


def test_columns_of_a_delete_are_counted_but_not_stored():
    *_, widths, columns = delta_columns([delta("DELETE", "r1", "1"), delta("INSERT", "r2", "2")])
    assert (widths.to_pylist(), columns.to_pylist()) == ([1, 1], [[], [("c0", "2")]])


def test_a_value_without_a_canonical_form_is_rejected():
    with pytest.raises(ValidationError, match="1e999 is not a JSON value"):
        delta_columns([delta("INSERT", "r1", "1e999")])
