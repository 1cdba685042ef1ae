"""Deltas that the pipeline sends to the gateway server: no request is larger than the server accepts."""

from contextlib import nullcontext

import pyarrow as pa
import pytest

from lakehouse.backends import flows
from lakehouse.erasure import requests
from lakesync.adapters.arrow import to_arrow
from lakesync.adapters.deltas import StoredDelta
from lakesync.wire.json import decode_push
from tests.conformance.book import make_delta

LIMIT = 20_000
DELTAS = [make_delta("c", number, f"r{number}", text="x" * 900) for number in range(1, 101)]


@pytest.fixture(autouse=True)
def small_limit(monkeypatch):
    for module in (flows, requests):
        monkeypatch.setattr(module, "MAX_REQUEST_BYTES", LIMIT)


def test_a_flow_into_the_lake_divides_pushes_by_size():
    bodies = []

    class Intake:
        def push(self, gateway, body):
            assert gateway == "g"
            bodies.append(body)

    large = make_delta("c", 101, "large", text="x" * LIMIT)
    flows._push(Intake(), to_arrow([StoredDelta("g", 1, each) for each in [*DELTAS, large]]), None)
    assert [each for body in bodies for each in decode_push(body).deltas] == [*DELTAS, large]
    assert all(len(body) <= LIMIT or len(decode_push(body).deltas) == 1 for body in bodies)
    assert len(bodies) < 20


def test_restored_deltas_are_divided_by_size():
    calls = []

    class Store:
        def restore(self, gateway, seq, deltas):
            assert (gateway, seq) == ("g", 7)
            calls.append(deltas)

    names = ["op", "table_name", "row_id", "client_id", "columns", "hlc", "delta_id"]
    (batch,) = to_arrow([StoredDelta("g", 1, each) for each in DELTAS]).select(names).to_batches()
    task = requests._RestoreTask(lambda: nullcontext(Store()), "g", 7)
    assert list(task.run([batch, pa.RecordBatch.from_pylist([], batch.schema)])) == []
    assert [each for call in calls for each in call] == DELTAS
    assert 5 < len(calls) < 20
