"""Days of arrival that are late in the history and its followers, over a real store and a Dagster instance."""

import time
from contextlib import closing, nullcontext

import dagster as dg
import pytest
from msgspec.structs import replace

from assets.names import CHECKPOINT, DELTAS, state_key, target_key
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.lags import Lag
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.delta import extract_delta
from lakesync.model.schema import TableSchema
from lakesync.model.types import SyncPush
from lakesync.staging import open_store
from sensors.freshness import days_of_asset, freshness_sensor
from sensors.lags import PipelineLags
from tests.dagster_instance import dagster_instance

NOON = 1_772_366_400_000  # milliseconds of 2026-03-01
DAYS = ["2026-03-01", "2026-03-02"]
DAY = 86_400_000
LATE = 900
TABLE = state_key("t")


class House:
    def __init__(self, tmp_path, instance):
        self.offset, self.instance = tmp_path / "offset", instance
        self.set(NOON)
        self.config = load({"data_dir": tmp_path, "clock_offset_file": self.offset})
        self.engine = Engine(open_store(self.config.staging.url, lambda: self.now), lambda: self.now)
        self.engine.open()

    def set(self, now_ms):
        self.now = now_ms
        self.offset.write_text(str(now_ms - time.time_ns() // 1_000_000))

    def push(self, row):
        delta = extract_delta(None, {"n": 1}, table="t", row_id=row, client_id="c", hlc=self.now << 16)
        self.engine.gateway("g").handle_push(SyncPush("c", (delta,)))

    def flush(self):
        """Confirm everything unflushed, as a flush does after it has checked the lake."""
        batch = self.engine.store.plan("g", "main", 1000)
        id_sum = sum(day.id_sum - day.flushed_id_sum for day in self.engine.store.ledger("g"))
        self.engine.store.confirm(batch.batch_id, batch.deltas, id_sum % 2**64)

    def made(self, key, through_ms):
        moment = dg.MetadataValue.timestamp(through_ms / 1000)
        self.instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata={"valid_through": moment}))

    def late(self, key, lags=()):
        days = days_of_asset(self.engine.store, key, lags, allowed_seconds=LATE, now_ms=self.now)
        return [day.day for day in days if day.late]


@pytest.fixture
def house(tmp_path):
    with dagster_instance() as instance:
        house = House(tmp_path, instance)
        yield house
        house.engine.close()


def test_a_day_is_late_when_a_push_of_it_waits_too_long(house):
    assert house.late(DELTAS) == []
    house.push("a")
    house.set(NOON + LATE * 1000 - 1000)
    assert house.late(DELTAS) == []
    house.set(NOON + LATE * 1000 + 1000)
    assert house.late(DELTAS) == house.late(TABLE) == DAYS[:1]
    house.flush()
    assert house.late(DELTAS) == []


def test_a_table_is_late_with_the_days_from_the_oldest_delta_that_it_lacks(house):
    house.push("a")
    house.flush()
    house.set(NOON + DAY)
    house.push("b")
    house.flush()
    lag = Lag("table", "t", "g", 0, 1, house.now)
    assert house.late(TABLE, [lag]) == []
    house.set(NOON + DAY + LATE * 1000 + 1000)
    assert house.late(TABLE, [lag]) == DAYS[1:]
    assert house.late(TABLE, [lag, replace(lag, since_ms=NOON)]) == DAYS
    assert house.late(TABLE, [replace(lag, name="own.t")]) == house.late(DELTAS, [lag]) == []
    assert house.late(state_key("t", "own"), [replace(lag, name="own.t")]) == DAYS[1:]


def test_checkpoints_and_destinations_are_late_by_their_own_lags(house):
    house.push("a")
    house.flush()
    house.set(NOON + LATE * 1000 + 1000)
    lags = {
        CHECKPOINT: Lag("checkpoint", "", "g", 0, 1, NOON),
        target_key("shop", "pg"): Lag("destination", "destinations/shop/pg", "g", 0, 1, NOON),
        target_key("shop", "lite"): Lag("destination", "destinations/shop/lite", "g", 0, 1, NOON),
    }
    late = {(key, other): house.late(key, [lag]) for key in lags for other, lag in lags.items()}
    assert late == {(key, other): DAYS[:1] if key == other else [] for key, other in late}
    assert house.late(DELTAS, lags.values()) == house.late(TABLE, lags.values()) == []


def test_the_sensor_reports_lateness_once_and_without_a_run(house):
    snapshot = SchemaSnapshot((TableSchema("t", ()),))
    lags = PipelineLags(house.config, snapshot)
    sensor = freshness_sensor(house.config, snapshot, lambda: nullcontext(house.engine.store), lags)

    def tick(cursor):
        with dg.build_sensor_context(house.instance, cursor=cursor) as context:
            return sensor(context)

    assert isinstance(tick(None), dg.SkipReason)
    house.push("a")
    first = tick(None)
    watched = [DELTAS, TABLE, CHECKPOINT]
    assert [(event.asset_key, event.passed) for event in first.asset_events] == [(key, True) for key in watched]
    assert isinstance(tick(first.cursor), dg.SkipReason)
    house.made(DELTAS, NOON)
    made = tick(first.cursor)
    (event,) = made.asset_events
    assert event.target_materialization_data.storage_id > 0
    assert isinstance(tick(made.cursor), dg.SkipReason)
    house.set(NOON + LATE * 1000 + 1000)
    second = tick(made.cursor)
    assert [event.passed for event in second.asset_events] == [False] * 3
    assert second.asset_events[0].description == "late: 2026-03-01"
    assert "| 2026-03-01 | 1 | 0 | **late** |" in second.asset_events[0].metadata["days"].value


def test_a_late_check_passes_again_after_staging_has_no_day_of_arrival(house, tmp_path):
    snapshot = SchemaSnapshot()
    stores = [house.engine.store]
    lags = PipelineLags(house.config, snapshot)
    sensor = freshness_sensor(house.config, snapshot, lambda: nullcontext(stores[-1]), lags)

    def tick(cursor):
        with dg.build_sensor_context(house.instance, cursor=cursor) as context:
            return sensor(context)

    house.push("a")
    house.set(NOON + LATE * 1000 + 1000)
    late = tick(None)
    assert [event.passed for event in late.asset_events] == [False, False]  # the history and the checkpoints
    with closing(Engine(open_store(f"sqlite://{tmp_path}/empty", lambda: house.now), lambda: house.now)) as empty:
        empty.open()
        stores.append(empty.store)
        in_time = tick(late.cursor)
        assert [event.passed for event in in_time.asset_events] == [True, True]
        assert isinstance(tick(in_time.cursor), dg.SkipReason)
