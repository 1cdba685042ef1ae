"""The demo's truth, on small readable cases."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from examples.flights.client import Journal, push_body
from examples.flights.data import COLUMNS
from examples.flights.truth import Truth, replica_mismatches, state_mismatches, visible_rows
from examples.flights.workload import Write


@pytest.fixture
def truth_of(tmp_path):
    """A function that computes the truth of writes, each acknowledged at a separate step."""

    def tell(*writes: Write) -> Truth:
        journal = Journal(tmp_path / "journal")
        for step, write in enumerate(writes):
            journal.record(write.client, step, "2013-01-01", "1", push_body(write.client, [write], 0))
        truth = Truth(journal)
        truth.reduce("final", len(writes))
        return truth

    return tell


def write(hlc: int, client: str, op: str, **columns) -> Write:
    return Write(hlc, client, op, "flights", "UA-1", columns)


def live(truth: Truth, name: str = "final") -> dict:
    rows = truth.database.execute(f"select col, value from {name}_cells").fetchall()
    return {column: json.loads(value) for column, value in rows}


def test_each_column_has_the_value_with_the_greatest_stamp(truth_of):
    truth = truth_of(
        write(3, "b", "UPDATE", dep_time=540, status="arrived"),
        write(1, "a", "INSERT", carrier="UA", dep_time=517),
        write(4, "a", "UPDATE", status="boarding"),
    )
    assert live(truth) == {"carrier": "UA", "dep_time": 540, "status": "boarding"}
    assert truth.visible("final") == 1


def test_of_equal_stamps_the_greater_client_wins(truth_of):
    assert live(truth_of(write(1, "b", "INSERT", tailnum="B"), write(1, "a", "INSERT", tailnum="A"))) == {
        "tailnum": "B"
    }


def test_a_delete_hides_older_values_that_arrive_later(truth_of):
    truth = truth_of(write(2, "a", "DELETE"), write(1, "a", "INSERT", carrier="UA"))
    assert live(truth) == {}
    assert truth.visible("final") == 0


def test_a_later_update_undoes_a_deletion_only_with_its_own_columns(truth_of):
    truth = truth_of(
        write(1, "a", "INSERT", carrier="UA", status="scheduled"),
        write(2, "a", "DELETE"),
        write(3, "b", "UPDATE", status="reinstated"),
    )
    assert live(truth) == {"status": "reinstated"}
    assert truth.visible("final") == 1


def test_an_insert_without_columns_is_visible(truth_of):
    assert truth_of(write(1, "a", "DELETE"), write(2, "a", "INSERT")).visible("final") == 1


def test_the_state_in_the_middle_has_only_deltas_that_had_arrived(truth_of):
    truth = truth_of(write(9, "a", "UPDATE", status="late"), write(1, "b", "INSERT", carrier="UA", status="early"))
    truth.reduce("middle", 0)
    assert live(truth, "middle") == {"status": "late"}


def test_counts_report_deltas_clients_conflicts_and_late_deltas(truth_of):
    counts = truth_of(
        write(5, "b", "UPDATE", dep_time=540),
        write(1, "a", "INSERT", carrier="UA", dep_time=517),
        write(6, "b", "UPDATE", dep_time=541),
    ).counts
    assert (counts.deltas, counts.distinct, counts.clients, counts.cells) == (3, 3, 2, 2)
    assert (counts.conflicts, counts.crossed, counts.losers, counts.late) == (1, 1, 1, 1)


STRUCT = pa.struct([("hlc", pa.int64()), ("client_id", pa.string())])
CELL = pa.struct([*STRUCT, ("delta_id", pa.string()), ("width", pa.int32()), ("value", pa.string())])
ARROW = {"string": pa.string(), "number": pa.float64(), "boolean": pa.bool_()}


def lake_of(truth: Truth, **changes) -> pa.Table:
    """A state table of flights, as in the lake."""
    cells = truth.database.execute("select col, hlc, client, delta_id, value from final_cells").fetchall()
    row = {
        "_row": "UA-1",
        "_cells": [
            (col, {"hlc": hlc, "client_id": client, "delta_id": delta_id, "width": 1, "value": value})
            for col, hlc, client, delta_id, value in cells
        ],
        "_tombstone": None,
        "_inserted": {"hlc": 1, "client_id": "a"},
        "_gone": False,
        **dict.fromkeys(COLUMNS["flights"]),
        **live(truth),
        **changes,
    }
    kinds = {"_cells": pa.map_(pa.string(), CELL), "_tombstone": STRUCT, "_inserted": STRUCT, "_gone": pa.bool_()}
    kinds |= {column: ARROW[kind] for column, kind in COLUMNS["flights"].items()}
    return pa.table({name: pa.array([value], kinds.get(name, pa.string())) for name, value in row.items()})


def test_a_correct_lake_has_no_mismatch(truth_of):
    truth = truth_of(write(1, "a", "INSERT", carrier="UA", dep_time=517, estimated=True, dest=None))
    assert state_mismatches(truth, "final", "flights", lake_of(truth)) == 0


def test_every_difference_is_a_mismatch(truth_of):
    truth = truth_of(write(1, "a", "INSERT", carrier="UA", dep_time=517))
    right = lake_of(truth)
    for change in ({"dep_time": 518.0}, {"carrier": None}, {"_gone": True}, {"_inserted": None}, {"_cells": []}):
        assert state_mismatches(truth, "final", "flights", lake_of(truth, **change)) > 0
    assert state_mismatches(truth, "final", "flights", right.slice(0, 0)) > 0


def test_a_replica_must_have_the_rows_of_its_own_carrier_only(truth_of, replica):
    truth = truth_of(write(1, "a", "INSERT", carrier="UA", dep_time=517))
    expected = visible_rows(truth, "final")
    assert replica_mismatches(expected, "UA", replica) == 1
    assert replica_mismatches(expected, "AA", replica) == 0
    replica.write("INSERT", "flights", "UA-1", {"carrier": "UA", "dep_time": 517})
    assert replica_mismatches(expected, "UA", replica) == 0
    assert replica_mismatches(expected, None, replica) == 1


def test_no_client_sees_a_flight_without_a_carrier(truth_of, replica):
    truth = truth_of(
        write(1, "a", "INSERT", carrier="UA"), write(2, "a", "DELETE"), write(3, "b", "UPDATE", dep_delay=15)
    )
    expected = visible_rows(truth, "final")
    assert list(expected["flights"]) == ["UA-1"]
    assert replica_mismatches(expected, "UA", replica) == 0
    assert replica_mismatches(expected, None, replica) == 0
