"""M1 to M4 for the Python merge, against an oracle that sees all deltas at once."""

import random
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from lakesync.model.merge import RowState, decode_state, encode_state
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.testing import strategies
from tests.property.merge_oracle import merged as oracle
from tests.spelling import spelled


def merged(deltas, state=None):
    state = RowState() if state is None else state
    for delta in deltas:
        state.merge(delta)
    return state


@given(strategies.histories(max_size=8))
def test_m1_m2_m3_the_merge_equals_the_oracle(deltas):
    assert spelled(merged(deltas)) == oracle(deltas)


@given(strategies.histories(max_size=12), st.integers(0, 6))
def test_a_copy_merges_like_a_stored_state_and_changes_nothing_else(deltas, place):
    state = merged(deltas[:place])
    before = encode_state(state)
    copy, stored = state.copy(), decode_state(before)
    for delta in deltas[place:]:
        assert copy.merge(delta) == stored.merge(delta)
        assert copy == stored
        assert (
            copy.values()
            == stored.values()
            == {column: value for part in copy.live for column, value in part.columns.items()}
        )
    assert encode_state(copy) == encode_state(stored)
    assert encode_state(state) == before


@given(strategies.histories(max_size=4))
def test_m4_every_order_gives_the_same_bytes(deltas):
    assert len({encode_state(merged(order)) for order in permutations(deltas)}) == 1


@given(strategies.histories(max_size=10), st.randoms(use_true_random=False))
def test_m4_any_order_grouping_and_repetition_gives_the_same_state(deltas, rng):
    expected = encode_state(merged(deltas))
    again = deltas + [rng.choice(deltas) for _ in range(3) if deltas]
    rng.shuffle(again)
    state = RowState()
    while again:
        size = rng.randint(1, len(again))
        state = decode_state(encode_state(merged(again[:size], state)))
        again = again[size:]
    assert encode_state(merged(deltas, state)) == expected


@given(strategies.histories(max_size=8))
def test_m4_a_repeat_changes_nothing_and_reports_no_change(deltas):
    state = merged(deltas)
    before = encode_state(state)
    for delta in deltas:
        outcome = state.merge(delta)
        assert not outcome.changed
        assert not outcome.won
        assert outcome.was_visible == outcome.visible == state.visible
    assert encode_state(state) == before


@given(strategies.histories(max_size=8))
def test_an_outcome_describes_the_change_of_the_state(deltas):
    state = RowState()
    for delta in deltas:
        before, visible = encode_state(state), state.visible
        owned = {column: part.delta_id for part in state.live for column in part.columns}
        outcome = state.merge(delta)
        assert outcome.changed == (encode_state(state) != before)
        assert (outcome.was_visible, outcome.visible) == (visible, state.visible)
        assert all(state.cells[column].origin.delta_id == delta.delta_id for column in outcome.won)
        for column in outcome.lost:
            cell = state.cells.get(column)
            assert cell is None or cell.origin.delta_id != delta.delta_id
        mine = {cell.column for cell in delta.columns}
        assert set(outcome.won).isdisjoint(outcome.lost)
        kept = mine - set(outcome.won) - set(outcome.lost)
        if delta.op != "DELETE":
            assert all(owned[column] == delta.delta_id for column in kept)


@given(strategies.histories(max_size=8))
def test_a_state_is_ordered_and_has_only_live_deltas(deltas):
    state = merged(deltas)
    order = [(part.hlc, part.client_id, part.delta_id, part.width) for part in state.live]
    assert order == sorted(set(order))
    assert all(part.columns for part in state.live)
    columns = [column for part in state.live for column in part.columns]
    assert len(columns) == len(set(columns))
    if state.tombstone is not None:
        assert all(part.stamp > state.tombstone for part in state.live)
        assert state.inserted is None or state.inserted > state.tombstone


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["1", "1.0", "2", '"a"'])), min_size=1, max_size=6))
def test_m3_replicas_converge_even_if_deltas_share_an_id(cells):
    deltas = [
        RowDelta("UPDATE", "t", "r", "a", (ColumnValue(column, Raw(text.encode())),), 1, "id") for column, text in cells
    ]
    rng = random.Random(0)
    states = set()
    for _ in range(10):
        rng.shuffle(deltas)
        states.add(encode_state(merged(deltas)))
    assert len(states) == 1


def test_m4_six_deltas_in_every_order_give_the_same_state():
    def delta(op, hlc, client, **cells):
        columns = tuple(ColumnValue.of(column, value) for column, value in cells.items())
        return RowDelta(op, "t", "r", client, columns, hlc, f"{op}-{hlc}-{client}")

    deltas = [
        delta("INSERT", 1, "a", x=1, y=1),
        delta("UPDATE", 4, "b", x=4),
        delta("UPDATE", 3, "c", y=3, z=3),
        delta("DELETE", 2, "a"),
        delta("INSERT", 3, "a", x=3),
        delta("UPDATE", 4, "a", x=5, z=5),
    ]
    states = {encode_state(merged(order)) for order in permutations(deltas)}
    assert len(states) == 1
    assert spelled(decode_state(states.pop())) == oracle(deltas)
