"""The demo's clients are strict about INSERTs, and its driver finds the middle of the run."""

from __future__ import annotations

import json
import sqlite3

import pytest

from examples.flights.client import Journal
from examples.flights.driver import DriverResult
from examples.flights.workload import MINUTE, push_time


def delta(op: str, **columns) -> dict:
    cells = [{"column": column, "value": value} for column, value in columns.items()]
    return {"op": op, "table": "airports", "rowId": "EWR", "columns": cells}


def test_a_second_insert_of_a_row_is_an_error(replica):
    replica.apply([delta("INSERT", faa="EWR")])
    with pytest.raises(sqlite3.IntegrityError):
        replica.apply([delta("INSERT", faa="EWR")])


def test_an_update_of_a_row_that_is_not_there_does_nothing(replica):
    replica.apply([delta("UPDATE", name="Newark"), delta("DELETE")])
    assert replica.rows("airports") == {}


def test_values_are_stored_unchanged_and_json_as_text(replica):
    replica.apply([delta("INSERT", faa="EWR", alt=18, position={"lon": -74.1, "lat": 40.6}), delta("UPDATE", alt=None)])
    assert replica.rows("airports") == {"EWR": ("EWR", None, '{"lat":40.6,"lon":-74.1}', None, None, None, None)}


def test_an_update_by_the_app_of_a_missing_row_does_nothing(replica):
    replica.write("UPDATE", "airports", "EWR", {"faa": "EWR"})
    replica.write("INSERT", "airports", "EWR", {"name": "Newark"})
    assert replica.rows("airports")["EWR"][:2] == ("EWR", "Newark")


def test_the_journal_stores_pushes_unchanged(tmp_path):
    journal = Journal(tmp_path)
    journal.record("a", 3, "2013-01-01", "7", b'{"deltas":[]}')
    journal.record("a", 4, "2013-01-02", "8", b'{"deltas":[1]}')
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(line["order"], line["step"], line["push"]) for line in lines] == [
        (0, 3, {"deltas": []}),
        (1, 4, {"deltas": [1]}),
    ]
    assert journal.pushes == 2


def test_the_middle_of_a_run_follows_the_step_with_half_of_the_deltas():
    played = DriverResult(deltas=100, timeline=[(0, 30), (2, 60), (5, 100)])
    assert played.middle == (2, push_time(5) - MINUTE)
    assert DriverResult(deltas=10, timeline=[(3, 10)]).middle == (3, push_time(4) - MINUTE)
