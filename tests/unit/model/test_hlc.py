import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.model.errors import ClockDriftError
from lakesync.model.hlc import HLC, MAX_DRIFT_MS, decode, encode, wall_clock
from lakesync.testing import ManualClock

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/hlc.json").read_text())


@pytest.mark.parametrize("case", VECTORS["encode"], ids=lambda case: case["hlc"])
def test_encoding_agrees_with_the_vectors(case):
    assert encode(case["wall"], case["counter"]) == int(case["hlc"])
    assert decode(int(case["hlc"])) == (case["wall"], case["counter"])


@pytest.mark.parametrize("walk", VECTORS["walks"], ids=lambda walk: walk["label"])
def test_sequences_of_ticks_agree_with_the_vectors(walk):
    wall = ManualClock()
    clock = HLC(wall)
    for step in walk["steps"]:
        wall.now_ms = step["at"]
        if "error" in step:
            before = clock.last
            with pytest.raises(ClockDriftError):
                clock.receive(int(step["remote"]))
            assert clock.last == before
        elif step["op"] == "now":
            assert clock.now() == int(step["hlc"]) == clock.last
        else:
            assert clock.receive(int(step["remote"])) == int(step["hlc"])


@pytest.mark.parametrize(("wall", "counter"), [(-1, 0), (1 << 48, 0), (0, -1), (0, 1 << 16)])
def test_values_out_of_range_are_rejected(wall, counter):
    with pytest.raises(ValueError, match="outside"):
        encode(wall, counter)


@given(st.lists(st.tuples(st.integers(-3000, 3000), st.integers(-9000, MAX_DRIFT_MS) | st.none()), max_size=30))
def test_a_clock_increases_and_passes_received_values(steps):
    wall = ManualClock()
    clock = HLC(wall)
    for move, remote in steps:
        wall.advance(move)
        last = clock.last
        if remote is None:
            assert clock.now() > last
        else:
            seen = encode(wall.now_ms + remote, 7)
            assert clock.receive(seen) > max(last, seen)


def test_a_clock_continues_from_its_stored_value():
    last = encode(5_000, 9)
    assert HLC(ManualClock(1_000), last).now() == last + 1


def test_the_machines_clock_is_in_milliseconds():
    assert 1_600_000_000_000 < wall_clock() < 10_000_000_000_000
