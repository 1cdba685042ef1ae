"""A row that is overwritten again and again is the same, whenever somebody looks at it."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from lakesync.model.merge import LiveDelta, RowState
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.staging.hot_rows import WRITERS_KEPT, HotRow, born_row, note_writer
from lakesync.staging.records import ARRIVAL_STEP, StoredRow

_WRITES = st.lists(
    st.tuples(
        st.integers(0, WRITERS_KEPT + 2),
        st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), min_size=1),
        st.booleans(),
    ),
    max_size=20,
)


@given(_WRITES, st.booleans(), st.booleans())
def test_a_row_is_the_same_merged_at_once_or_later(writes, born, rests):
    eager = StoredRow("t", "r", arrival=0, state=RowState())
    hot = HotRow.of(eager.copy())
    if born:
        birth = RowDelta("INSERT", "t", "r", "c0", (ColumnValue.of("a", 0), ColumnValue.of("d", 0)), 0, "0" * 64)
        hot, eager = HotRow.of_birth(birth, ("*",), 1), born_row(birth, ("*",), 1)
        if rests:
            hot.rest()
    for number, (writer, op, columns, looked_at) in enumerate(writes, 1):
        client, at = f"c{writer}", number * ARRIVAL_STEP
        cells = () if op == "DELETE" else tuple(ColumnValue.of(*cell) for cell in columns.items())
        delta = RowDelta(op, "t", "r", client, cells, number, f"{number:064x}")
        plain = op == "UPDATE" and delta.hlc > hot.newest
        assert plain <= eager.state.is_before(delta)
        eager.touched.update(dict.fromkeys(eager.state.merge(delta).won, at))
        eager.arrival = at
        note_writer(eager, client, at, inserted=op == "INSERT", deleted=op == "DELETE")
        hot = hot.overwritten(delta, tuple(columns), at, client) if plain else HotRow.of(eager.copy())
        if looked_at:
            assert hot.merged() == eager
    assert hot.merged() == eager


def test_what_waits_to_be_merged_is_nothing_for_the_garbage_collector_to_look_at():
    deltas = [
        RowDelta("UPDATE", "t", "r", f"c{number % 3}", (ColumnValue.of("a", number),), number, f"{number:064x}")
        for number in range(1, 30)
    ]
    rows = [HotRow.of(StoredRow("t", "r", arrival=0, state=RowState([LiveDelta(0, "c", "0" * 64, {}, 0)])))] * 100
    gc.collect()
    before = len(gc.get_objects())
    for delta in deltas:
        rows = [row.overwritten(delta, ("a",), delta.hlc, delta.client_id) for row in rows]
    assert len(gc.get_objects()) - before < len(rows)
