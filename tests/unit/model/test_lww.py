import json
from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from lakesync.model.delta import delta_id
from lakesync.model.merge import LiveDelta, Outcome, RowState, decode_state, encode_state
from lakesync.model.types import ColumnValue, RowDelta
from lakesync.wire.json import decode_deltas
from tests.spelling import spelled

GOLDEN = msgspec.json.decode((Path(__file__).parents[2] / "vectors/merge.json").read_bytes(), type=list[dict[str, Raw]])


def delta(op, hlc, client, given_id=None, **cells):
    columns = tuple(ColumnValue(column, Raw(text.encode())) for column, text in cells.items())
    identity = given_id or delta_id(client_id=client, hlc=hlc, table="t", row_id="r", columns=columns)
    return RowDelta(op, "t", "r", client, columns, hlc, identity)


def merged(*deltas):
    state = RowState()
    for one in deltas:
        state.merge(one)
    return state


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: json.loads(bytes(case["label"])))
def test_the_merge_agrees_with_the_vectors(case):
    deltas = decode_deltas(bytes(case["deltas"]))
    for order in list(permutations(deltas))[:720]:
        assert spelled(merged(*order)) == json.loads(bytes(case["state"]))


def test_three_deltas_converge_in_every_order():
    """A peer that stamps the whole merged row with the winner's stamp is wrong in two of these orders."""
    deltas = [
        delta("INSERT", 1, "a", x='"a"', y='"a"'),
        delta("UPDATE", 2, "b", y='"b"'),
        delta("UPDATE", 3, "c", x='"c"'),
    ]
    states = [merged(*order) for order in permutations(deltas)]
    assert all(state == states[0] for state in states)
    assert {column: bytes(value) for column, value in states[0].values().items()} == {"x": b'"c"', "y": b'"b"'}


def test_an_outcome_lists_won_and_lost_columns():
    state = RowState()
    first = delta("INSERT", 2, "a", x="1", y="1")
    assert state.merge(first) == Outcome(("x", "y"), (), True, False, True)
    assert state.merge(delta("UPDATE", 1, "b", y="0", z="0")) == Outcome(("z",), ("y",), True, True, True)
    assert state.merge(first) == Outcome((), (), False, True, True)
    assert state.merge(delta("UPDATE", 1, "a", x="0")) == Outcome((), ("x",), False, True, True)
    assert state.merge(delta("DELETE", 2, "a")) == Outcome((), (), True, True, False)
    assert state.merge(first) == Outcome((), ("x", "y"), False, False, False)
    assert state.merge(delta("DELETE", 1, "a")) == Outcome((), (), False, False, False)
    assert state.merge(delta("INSERT", 3, "a")) == Outcome((), (), True, False, True)
    assert state.merge(delta("INSERT", 3, "a")) == Outcome((), (), False, True, True)


def test_columns_of_a_delete_are_ignored():
    broken = RowDelta("DELETE", "t", "r", "a", (ColumnValue("x", Raw(b"1")),), 1, "id")
    assert spelled(merged(broken))["cells"] == {}


def test_a_live_delta_is_marked_whole_until_it_loses_a_column():
    state = merged(delta("INSERT", 1, "a", x="1", y="1"))
    assert [part.whole for part in state.live] == [True]
    state.merge(delta("UPDATE", 2, "a", x="2"))
    assert [part.whole for part in state.live] == [False, True]
    assert state.cells["y"].origin.stamp == (1, "a")
    state.merge(delta("UPDATE", 3, "b", y="3"))
    assert [part.stamp for part in state.live] == [(2, "a"), (3, "b")]


def test_of_equal_texts_at_equal_stamps_the_greater_delta_id_wins():
    one, other = delta("UPDATE", 1, "a", "id-1", x="1.0"), delta("UPDATE", 1, "a", "id-2", x="1")
    for order in permutations([one, other]):
        state = merged(*order)
        assert state.cells["x"].origin.delta_id == "id-2"
        assert bytes(state.values()["x"]) == b"1"


def test_deltas_with_a_shared_id_converge():
    deltas = [
        delta("UPDATE", 1, "a", "same", x="1", y="1"),
        delta("UPDATE", 1, "a", "same", x="2", z="1"),
        delta("UPDATE", 1, "a", "same", x="2.0"),
    ]
    states = [merged(*order) for order in permutations(deltas)]
    assert len({encode_state(state) for state in states}) == 1


def test_merged_values_do_not_alias_the_request():
    body = bytearray(b'[{"op":"INSERT","table":"t","rowId":"r","clientId":"a","hlc":"1","deltaId":"i",')
    body += b'"columns":[{"column":"x","value":"kept"}]}]'
    state = merged(*decode_deltas(body))
    body[:] = b" " * len(body)
    assert bytes(state.values()["x"]) == b'"kept"'


def test_a_state_reads_back_as_itself():
    state = merged(
        delta("DELETE", 1, "a"),
        delta("INSERT", 2, "b", x='{"b":1, "a":[2]}', y="1.50"),
        delta("UPDATE", 2**63 - 1, "é\U00010000", z='"\\u00e9"'),
    )
    back = decode_state(encode_state(state))
    assert back == state
    assert encode_state(back) == encode_state(state)
    assert bytes(back.values()["x"]) == b'{"b":1, "a":[2]}'
    assert isinstance(back.tombstone, tuple)
    assert decode_state(encode_state(RowState())) == RowState()


def test_a_state_that_was_read_back_merges_further_deltas():
    state = decode_state(encode_state(merged(delta("INSERT", 1, "a", x="1", y="1"))))
    state.merge(delta("UPDATE", 2, "a", x="2"))
    assert [part.columns.keys() for part in state.live] == [{"y"}, {"x"}]
    assert state.live[0] == LiveDelta(1, "a", state.live[0].delta_id, {"y": Raw(b"1")}, 2)
