"""The workload of the flights demo is the same on every machine, and has real conflicts."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from examples.flights import data, workload
from examples.flights.client import delta_id, push_body
from examples.flights.workload import Step, Workload, count_crossed_cells
from lakesync.model import delta
from lakesync.model.hlc import MAX_DRIFT_MS
from lakesync.model.types import ColumnValue

DAYS = 7


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return list(Workload(DAYS).steps())


def test_all_nineteen_clients_write(steps):
    assert len({client for step in steps for client in step.outboxes}) == len(workload.CLIENTS) == 19


def test_the_workload_is_deterministic(steps):
    assert list(Workload(DAYS).steps()) == steps


def test_steps_are_ordered_and_span_one_day_more_than_the_flights(steps):
    numbers = [step.number for step in steps]
    assert numbers == sorted(set(numbers))
    assert len({workload.day_of(number) for number in numbers}) == DAYS + 1


def test_one_day_of_flights_arrives_on_three_days():
    assert {workload.day_of(step.number) for step in Workload(1).steps()} == {"2013-01-01", "2013-01-02", "2013-01-03"}


def test_every_flight_and_reference_row_is_written_by_someone(steps):
    rows = {(write.table, write.row_id) for step in steps for out in step.outboxes.values() for write in out}
    tables = Counter(table for table, _ in rows)
    flights = sum(len(records) for _, records in data.Flights(DAYS).by_day())
    assert flights == 6099
    assert tables == {"airlines": 16, "airports": 93, "planes": 1729, "flights": flights}


def test_no_two_stamps_of_a_client_are_equal(steps):
    stamps = Counter((write.hlc, write.client) for step in steps for out in step.outboxes.values() for write in out)
    assert max(stamps.values()) == 1


def test_a_client_pushes_in_the_order_of_its_clock(steps):
    for step in steps:
        for outbox in step.outboxes.values():
            assert outbox == sorted(outbox, key=lambda write: write.hlc)


def test_clocks_differ_by_minutes_and_never_run_ahead_of_the_server(steps):
    skews = [client.skew for client in workload.CLIENTS]
    assert max(skews) - min(skews) > 2 * workload.MINUTE
    for step in steps:
        latest = max(write.hlc for out in step.outboxes.values() for write in out) >> 16
        assert latest < workload.push_time(step.number) + MAX_DRIFT_MS


def test_stamps_cross_the_order_of_arrival_in_at_least_five_percent_of_the_cells(steps):
    cells, crossing = count_crossed_cells(steps)
    assert crossing / cells >= 0.05


def test_some_flights_are_cancelled_and_some_cancellations_undone(steps):
    ops: dict[str, list[str]] = {}
    for step in steps:
        for outbox in step.outboxes.values():
            for write in outbox:
                ops.setdefault(write.row_id, []).append(write.op)
    cancelled = [written for written in ops.values() if "DELETE" in written]
    assert sum("INSERT" in written[written.index("DELETE") :] for written in cancelled) > 10
    assert sum(written[-1] == "DELETE" for written in cancelled) > 10


def test_delta_ids_of_the_demo_clients_equal_those_of_lakesync(steps):
    for write in (write for step in steps[:3] for outbox in step.outboxes.values() for write in outbox):
        columns = [ColumnValue.of(name, value) for name, value in write.columns.items()]
        ours = delta.delta_id(
            client_id=write.client, hlc=write.hlc, table=write.table, row_id=write.row_id, columns=columns
        )
        assert delta_id(write) == ours


def test_a_full_batch_is_below_the_limit_of_a_body(steps):
    outbox = next(outbox for outbox in steps[0].outboxes.values() if len(outbox) > 500)
    assert len(push_body(outbox[0].client, outbox[:500], 0)) < 512 * 1024
    assert msgspec.json.decode(push_body(outbox[0].client, outbox[:1], 0))["deltas"][0]["op"] == "INSERT"
