"""INSERTs and UPDATEs whose merge into their row is postponed, several at a time."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lakesync.model.merge import RowState, intern_names
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.staging.records import StoredRow, Writer, decode_row, encode_row
from lakesync.staging.records.rows import MAX_UNMERGED, MAX_UNMERGED_COLUMNS, WRITERS_KEPT

_WRITES = st.tuples(
    st.sampled_from(["UPDATE"] * 6 + ["INSERT"] * 3 + ["DELETE"]),
    st.sampled_from([f"c{number}" for number in range(WRITERS_KEPT + 3)]),
    st.lists(st.sampled_from("xyz"), unique=True, max_size=3),
    st.integers(-3, 3),
)


def eager(row: StoredRow, delta: RowDelta, at: int) -> StoredRow:
    """The row after a delta that is merged immediately."""
    after = row.copy()
    if after.state.merge(delta, at).changed:
        after.arrival = at
    after.note_writer(delta.client_id, at, inserted=delta.op == "INSERT", deleted=delta.op == "DELETE")
    return after


def observed(row: StoredRow) -> tuple[StoredRow, list[str]]:
    """Everything observable of a row, including the order of its writers."""
    return row.fold(), list(row.writers)


@given(st.lists(st.tuples(_WRITES, st.booleans()), max_size=4 * MAX_UNMERGED))
def test_a_row_is_the_same_whether_deltas_are_merged_immediately_or_later(writes):
    now = later = StoredRow(("t", "r"), arrival=0, state=RowState())
    for at, ((op, client, names, late), looked_at) in enumerate(writes, 1):
        columns = () if op == "DELETE" else tuple(ColumnValue.of(name, at) for name in names)
        delta = RowDelta(op, "t", "r", client, columns, 10 * at - 8 * late + 100, f"id{at}")
        now = eager(now, delta, at)
        if op != "DELETE" and names and delta.hlc > later.newest_hlc:
            before = later
            known = observed(msgspec.structs.replace(before))
            later = later.with_unmerged(delta, intern_names(tuple(names)), client, at)
            assert observed(before) == known
        else:
            later = eager(later, delta, at)
        assert len(later.state.cells) + MAX_UNMERGED_COLUMNS >= len(now.state.cells)
        assert {name: later.value(name) for name in "xyz"} == {name: now.value(name) for name in "xyz"}
        assert later.newest_hlc >= max([cell.origin.hlc for cell in now.state.cells.values()], default=0)
        if looked_at:
            assert observed(later) == observed(now)
    assert observed(later) == observed(now) == observed(decode_row(encode_row(now)))


@given(st.sets(st.sampled_from("xyz")))
def test_an_insert_into_a_new_row_equals_a_merge_into_an_empty_one(names):
    columns = tuple(ColumnValue.of(name, 1) for name in sorted(names))
    delta = RowDelta("INSERT", "t", "r", "c", columns, 7, "id")
    merged = eager(StoredRow(("t", "r"), arrival=0, state=RowState()), delta, 4)
    assert merged.state == RowState.of_insert(delta, 4)
    assert merged.state.newest == RowState.of_insert(delta, 4).newest
    assert merged.writers == {"c": Writer(4, 4)}
