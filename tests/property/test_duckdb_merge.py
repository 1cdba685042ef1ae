"""M1 to M3 for the merge in DuckDB's SQL: the same rows as the gateway's, from deltas alone or with a state."""

from __future__ import annotations

import duckdb
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.tables.kernel import STORED, merge
from lakesync.analysis.merge_sql import DELTA_FRAGMENTS, FRAGMENTS, STATE_FRAGMENTS, visible_rows
from lakesync.model.delta import jcs_raw
from lakesync.model.merge import RowState
from lakesync.testing import strategies
from tests.property.test_kernel import history

COLUMNS = dict.fromkeys("xyz", "json")


def by_gateway(deltas):
    """Every visible row's values as canonical JSON text; null is read as null."""
    rows = {}
    for delta in deltas:
        rows.setdefault(delta.row_id, RowState()).merge(delta)
    found = {
        row: {column: jcs_raw(value) for column, value in state.values().items() if column in COLUMNS}
        for row, state in rows.items()
        if state.visible
    }
    return {row: {column: text for column, text in values.items() if text != "null"} for row, values in found.items()}


def by_duckdb(waiting, held):
    sql, parameters = visible_rows(COLUMNS)
    with duckdb.connect() as database:
        database.register("waiting", history(waiting))
        database.register("state_rows", merge(history(held), STORED.empty_table()).states)
        database.execute(f"CREATE TABLE fragments ({FRAGMENTS})")
        database.execute(f"INSERT INTO fragments {DELTA_FRAGMENTS} FROM waiting")
        database.execute(f"INSERT INTO fragments {STATE_FRAGMENTS}")
        rows = database.execute(sql, parameters).fetchall()
    found = {row: dict(zip(COLUMNS, values, strict=True)) for _, row, _, *values in rows}
    assert len(found) == len(rows)
    return {row: {column: text for column, text in values.items() if text is not None} for row, values in found.items()}


@settings(deadline=None, max_examples=60)
@given(
    histories=st.lists(strategies.histories(max_size=8), min_size=1, max_size=8),
    first=st.integers(0, 12),
    last=st.integers(0, 12),
)
def test_m4_merging_deltas_into_an_overlapping_state_equals_the_gateways_rows(histories, first, last):
    deltas = [
        msgspec.structs.replace(delta, row_id=f"r{row}") for row, history in enumerate(histories) for delta in history
    ]
    merged = deltas if first <= last else deltas[:last] + deltas[first:]
    assert by_duckdb(deltas[first:], deltas[:last]) == by_gateway(merged)
