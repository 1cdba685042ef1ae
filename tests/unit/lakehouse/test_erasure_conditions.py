"""Conditions for erased rows: a request that names nothing is rejected, so that it does not count as done."""

from __future__ import annotations

import msgspec
import pytest

from lakehouse.erasure.conditions import deltas_of, landed_by
from lakesync.model.errors import ValidationError
from lakesync.staging.records import Erasure

ROW = Erasure("g", 3, "notes", "r", None, hlc=100, arrival=200, requested_ms=0)


def test_conditions_name_the_row_and_pass_its_values_as_parameters():
    assert set(deltas_of([ROW]).parameters.values()) == {"g", "notes", "r", 100}
    condition = landed_by(ROW, None)
    assert condition is not None
    assert set(condition.parameters.values()) == {"g", "notes", "r"}


@pytest.mark.parametrize("missing", [{"table": None}, {"row_id": None}, {"table": None, "row_id": None}])
def test_a_request_with_neither_client_nor_row_is_rejected(missing):
    request = msgspec.structs.replace(ROW, **missing)
    with pytest.raises(ValidationError, match="erasure 3 of gateway 'g' names neither"):
        deltas_of([request])
    with pytest.raises(ValidationError, match="erasure 3 of gateway 'g' names neither"):
        landed_by(request, None)
