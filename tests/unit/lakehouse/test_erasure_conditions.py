"""Conditions for erased rows."""

from __future__ import annotations

from lakehouse.erasure.coverage import deltas_of, polled_rows_of
from lakesync.staging.records import Erasure

ROW = Erasure("g", 3, "notes", "r", None, hlc=100, arrival=200, requested_ms=0)


def test_conditions_name_the_row_and_pass_its_values_as_parameters():
    assert set(deltas_of([ROW]).parameters.values()) == {"g", "notes", "r", 100}
    condition = polled_rows_of(ROW, None)
    assert condition is not None
    assert set(condition.parameters.values()) == {"g", "notes", "r"}
