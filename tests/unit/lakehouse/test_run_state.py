"""The positions that the steps of a run share."""

from lakehouse.run_state import RunState
from lakesync.config import load


def test_no_position_is_left_after_all_are_discarded(tmp_path, monkeypatch):
    """An erasure adds deltas after the positions that were read; with shards, each shard has its own."""
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
