"""The positions that the steps of a run share."""

from contextlib import closing

import pytest

from lakehouse.run_state import RunState
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.delta import extract_delta
from lakesync.model.errors import StagingUnavailableError
from lakesync.model.types import SyncPush
from lakesync.staging import open_store

NOON = 1_772_366_400_000  # milliseconds of 2026-03-01
DAY = 86_400_000


def test_no_position_is_left_after_all_are_discarded(tmp_path, monkeypatch):
    """An erasure adds deltas after the positions that were read; each shard has a separate position."""
    arrivals = {"main": 100, "shard-default": 100, "shard-orders": 100}
    monkeypatch.setattr("lakehouse.gateways_table.assign_namespaces", lambda *_: {})
    monkeypatch.setattr(
        "lakehouse.history.flush.flushed_arrivals",
        lambda _spark, _names, shards=("main",): {"g": max(arrivals[shard] for shard in shards)},
    )
    shards = {"shards": {"orders": "shard-orders"}, "default": "shard-default"}
    config = load({"data_dir": tmp_path, "shard_config": shards})
    state = RunState(config, None, lambda: None, lambda: None, lambda: 0)
    assert [state.flushed(), state.flushed_of("orders")] == [{"g": 100}, {"g": 100}]
    arrivals |= dict.fromkeys(arrivals, 200)
    assert [state.flushed(), state.flushed_of("orders")] == [{"g": 100}, {"g": 100}]
    state.forget_positions()
    assert [state.flushed_of("orders"), state.flushed()] == [{"g": 200}, {"g": 200}]


class House:
    """A staging store with a manual clock, and the state of one run."""

    def __init__(self, config):
        self.now = NOON
        self.engine = Engine(open_store(config.staging.url, lambda: self.now), lambda: self.now)
        self.engine.open()
        self.state = RunState(config, None, lambda: None, lambda: self.engine.store, lambda: self.now)

    def push(self, gateway):
        delta = extract_delta(None, {"n": 1}, table="t", row_id="r", client_id="c", hlc=self.now << 16)
        self.engine.gateway(gateway).handle_push(SyncPush("c", (delta,)))

    def flush(self, gateway):
        """Confirm the gateway's unflushed deltas."""
        batch = self.engine.store.plan(gateway, "main", 1000)
        id_sum = sum(day.id_sum - day.flushed_id_sum for day in self.engine.store.ledger(gateway))
        self.engine.store.confirm(batch.batch_id, batch.deltas, id_sum % 2**64)


@pytest.fixture
def house(tmp_path):
    made = House(load({"data_dir": tmp_path}))
    with closing(made.engine):
        yield made


def test_data_of_an_idle_gateway_is_valid_through_the_time_at_which_the_run_read_its_cut_point(house):
    house.push("idle")
    house.flush("idle")
    house.now += 30 * DAY
    house.state.read_cut_points()
    house.now += 1000
    assert house.state.valid_through_ms() == NOON + 30 * DAY


def test_data_is_valid_through_the_oldest_delta_that_a_gateway_without_a_cut_point_has_not_flushed(house):
    house.push("failing")
    house.now += DAY
    house.push("g")
    house.state.read_cut_points()
    house.flush("g")
    house.state.drop_cut_point("failing")
    assert house.state.valid_through_ms() == NOON


def test_after_a_cut_point_is_dropped_tables_are_merged_up_to_the_flushed_deltas(house, monkeypatch):
    house.push("failing")
    monkeypatch.setattr("lakehouse.history.flush.flushed_arrivals", lambda *_: {"failing": 1})
    monkeypatch.setattr("lakehouse.gateways_table.assign_namespaces", lambda *_: {})
    house.state.read_cut_points()
    assert house.state.flushed()["failing"] > 1
    house.state.drop_cut_point("failing")
    assert house.state.flushed() == {"failing": 1}


def test_the_dropped_cut_point_of_the_only_gateway_is_not_read_again(house):
    house.push("only")
    house.state.read_cut_points()
    house.flush("only")  # the flush failed after its commit
    house.state.drop_cut_point("only")
    assert house.state.cut_points() == {}
    assert house.state.valid_through_ms() == NOON


def test_a_failed_read_of_the_backlog_leaves_no_cut_points_of_gateways_with_unflushed_deltas(house, monkeypatch):
    house.push("g")

    def fail():
        raise StagingUnavailableError("the store restarts")

    with monkeypatch.context() as patched:
        patched.setattr(house.engine.store, "backlog", fail)
        with pytest.raises(StagingUnavailableError):
            house.state.cut_points()
    assert house.state.cut_points() == {}
