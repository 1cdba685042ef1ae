"""The report of the lags, written while sensors read their cursors in other threads."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import dagster as dg
import msgspec
import pytest

from lakehouse.marks import suspended_mark, transfer_mark
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import REPORT, DeadLetters, Report
from lakesync.config import load
from lakesync.config.backends import DeclaredFlow
from lakesync.engine import Engine
from lakesync.model.hlc import wall_clock
from lakesync.staging import open_store
from sensors.backoff import Attempt, Attempts
from sensors.due_times import timed_parts
from sensors.lags import PipelineLags


class Requests(dict[str, Any]):
    """The requests of a sensor. While they are read, another sensor makes its first request."""

    meanwhile: Callable[[], object]

    def items(self):
        self.meanwhile()
        return super().items()


@pytest.fixture
def store():
    engine = Engine(open_store("memory://", wall_clock), wall_clock)
    engine.open()
    yield engine.store
    engine.close()


def test_a_sensor_can_make_its_first_request_while_the_report_is_written(store, tmp_path, monkeypatch):
    lags = PipelineLags(load({"data_dir": tmp_path}), SchemaSnapshot())
    requests = Requests()
    cursor = msgspec.json.encode({"flush": Attempt(0, 1, 0.0)}).decode()
    requests.meanwhile = lambda: lags.record_attempts("second", cursor)
    with monkeypatch.context() as patch:
        patch.setattr(Attempts, "by_part", requests)
        lags.record_attempts("first", cursor)
    with dg.DagsterInstance.ephemeral() as instance:
        assert lags.read(store, lambda: instance) == []
    assert lags.record_attempts("second", cursor).by_part.keys() == {"flush"}


def test_suspended_tables_of_flows_are_dead_letters(tmp_path, monkeypatch):
    monkeypatch.setattr(PipelineLags, "_mark_reader", lambda _lags: Mock(rejected={}))
    config = load({"data_dir": tmp_path}).model_copy(
        update={
            "adapters": {"old": f"sqlite://{tmp_path}/old.db", "new": f"sqlite://{tmp_path}/new.db"},
            "flows": {
                "out": DeclaredFlow(source="old", to="new", tables=("todos",)),
                "home": DeclaredFlow(source="old", to="lake", into="home"),
            },
        }
    )
    lags = PipelineLags(config, SchemaSnapshot())
    assert list(lags._dead_letters({}, [], 5)) == []
    marks = {suspended_mark("flows/out/new"): '["todos"]'}
    assert list(lags._dead_letters(marks, [], 5)) == [DeadLetters("destination", "flows/out/new!todos", "", 1, 5)]
    marks[REPORT] = msgspec.json.encode(Report(5, dead_letters=tuple(lags._dead_letters(marks, [], 5)))).decode()
    assert [each.since_ms for each in lags._dead_letters(marks, [], 9)] == [5]


def test_a_flow_that_never_ran_is_behind_since_it_was_first_reported(store, tmp_path):
    flow = DeclaredFlow(source="a", to="b", tables=("todos",), schedule="0 0 * * *")
    clock = tmp_path / "clock"
    adapters = {name: f"sqlite://{tmp_path}/{name}.db" for name in ("a", "b")}
    config = load({"data_dir": tmp_path, "clock_offset_file": clock})
    config = config.model_copy(update={"adapters": adapters, "flows": {"f": flow}})
    since_ms = []
    with dg.DagsterInstance.ephemeral() as instance:
        for offset_ms in (0, 600_000):
            clock.write_text(str(offset_ms))
            (lag,) = PipelineLags(config, SchemaSnapshot()).read(store, lambda: instance)
            since_ms.append(lag.since_ms)
    assert since_ms[0] == since_ms[1]


def test_a_flow_is_due_if_its_last_run_is_in_the_future(tmp_path):
    """The clock was set back."""
    flow = DeclaredFlow(source="a", to="b", tables=("todos",), schedule="0 0 * * *")
    config = load({"data_dir": tmp_path}).model_copy(update={"flows": {"f": flow}})
    (timed,) = timed_parts(config, SchemaSnapshot(), {transfer_mark("flow", "f"): "2000"}, now_ms=1000)
    assert timed.next_ms == 1000
