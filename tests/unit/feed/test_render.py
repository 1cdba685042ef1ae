"""L6: a row is sent with true stamps, one delta per stamp, with the original id if it is the original delta."""

from __future__ import annotations

from lakesync.feed import render
from lakesync.model.delta import delta_id
from lakesync.model.merge import RowState
from lakesync.model.types import ColumnValue, Op, RowDelta
from lakesync.staging.records import StoredRow


def _delta(op: Op, client: str, hlc: int, **values: object) -> RowDelta:
    columns = tuple(ColumnValue.of(column, value) for column, value in values.items())
    identity = delta_id(client_id=client, hlc=hlc, table="t", row_id="r", columns=columns)
    return RowDelta(op, "t", "r", client, columns, hlc, identity)


def _row(*deltas: RowDelta) -> StoredRow:
    row = StoredRow(("t", "r"), arrival=256, state=RowState())
    for delta in deltas:
        row.state.merge(delta)
    return row


def test_a_row_is_an_insert_and_then_updates_in_order_of_stamp() -> None:
    late, first = _delta("UPDATE", "b", 20, y=2), _delta("INSERT", "a", 10, x=1)
    sent = render.insert(_row(late, first))
    assert [(delta.op, delta.hlc, delta.client_id, delta.delta_id) for delta in sent] == [
        ("INSERT", 10, "a", first.delta_id),
        ("UPDATE", 20, "b", late.delta_id),
    ]


def test_a_delta_with_an_overwritten_column_is_sent_trimmed_with_a_new_id() -> None:
    first, winner = _delta("INSERT", "a", 10, x=1, y=1), _delta("UPDATE", "b", 20, y=2)
    trimmed, whole = render.insert(_row(first, winner))
    assert [part.column for part in trimmed.columns] == ["x"]
    assert trimmed.delta_id == delta_id(client_id="a", hlc=10, table="t", row_id="r", columns=trimmed.columns)
    assert whole.delta_id == winner.delta_id


def test_two_deltas_of_one_stamp_are_sent_as_one() -> None:
    deltas = _delta("INSERT", "a", 10, x=1), _delta("UPDATE", "a", 10, y=2)
    (sent,) = render.insert(_row(*deltas))
    assert {part.column: part.decoded() for part in sent.columns} == {"x": 1, "y": 2}
    assert sent.delta_id not in {delta.delta_id for delta in deltas}


def test_an_insert_without_columns_is_sent_with_its_stamp() -> None:
    (sent,) = render.insert(_row(_delta("INSERT", "a", 10)))
    assert (sent.op, sent.hlc, sent.columns) == ("INSERT", 10, ())


def test_a_deleted_row_is_a_delete_with_the_stamp_of_its_tombstone() -> None:
    sent = render.delete(_row(_delta("INSERT", "a", 10, x=1), _delta("DELETE", "b", 30)))
    assert (sent.op, sent.hlc, sent.client_id) == ("DELETE", 30, "b")


def test_a_hidden_row_is_a_delete_not_newer_than_its_data() -> None:
    sent = render.delete(_row(_delta("INSERT", "a", 10, x=1), _delta("UPDATE", "b", 20, y=2)))
    assert (sent.op, sent.hlc, sent.client_id) == ("DELETE", 10, "a")


def test_an_update_has_only_the_selected_columns() -> None:
    row = _row(_delta("INSERT", "a", 10, x=1, z=1), _delta("UPDATE", "b", 20, y=2))
    (sent,) = render.update(row, lambda column, stamp: stamp[1] == "a" and column == "z")
    assert (sent.op, [part.column for part in sent.columns]) == ("UPDATE", ["z"])
    assert sent.delta_id == delta_id(client_id="a", hlc=10, table="t", row_id="r", columns=sent.columns)
