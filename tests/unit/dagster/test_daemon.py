"""Dagster's daemon evaluates sensors again at once after the clock was set back."""

import time
from typing import NamedTuple

import pytest

from lakesync_dagster.daemon import forget_future_evaluations


class Data(NamedTuple):
    """What Dagster stores for a sensor."""

    cursor: str
    last_tick_timestamp: float | None
    last_tick_start_timestamp: float | None


class Instance(NamedTuple):
    """An instance with one sensor or schedule, of which only a sensor has data."""

    sensor_instigator_data: Data | None
    stored: list[Data]

    def all_instigator_state(self):
        return [self]

    def with_data(self, data):
        return data

    def update_instigator_state(self, data):
        self.stored.append(data)


@pytest.mark.parametrize("times", [(3600, 3600), (None, 3600), (3600, -3600)])
def test_an_evaluation_in_the_future_is_forgotten(times):
    now = time.time()
    instance = Instance(Data("position", *(None if each is None else now + each for each in times)), [])
    forget_future_evaluations(instance)
    assert instance.stored == [Data("position", None, None)]


@pytest.mark.parametrize("data", [None, Data("position", None, None), Data("position", time.time(), time.time())])
def test_other_records_stay(data):
    instance = Instance(data, [])
    forget_future_evaluations(instance)
    assert instance.stored == []
