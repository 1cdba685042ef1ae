"""The requests of the flush sensor, over a real staging store and a real Dagster instance."""

import time
from functools import partialmethod

import dagster as dg
import pytest
from pydantic import SecretStr

from assets.names import FLUSH_SENSOR, REASON, REQUESTED_BY
from lakehouse.history.flush_due import due_flush
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import report_in
from lakesync.cli.up.process import free_ports
from lakesync.model.delta import extract_delta
from lakesync.model.hlc import OffsetClock, start_of
from lakesync.model.types import SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging.records import Backlog, Checkpoint
from lakesync.staging.remote import RemoteStore
from lakesync_dagster.definitions import make_definitions
from sensors import backoff as attempts
from sensors import lags
from tests.integration.dagster.sensor_support import DAY, DAYS, FLIGHTS, NOON, open_house


@pytest.fixture
def house(tmp_path):
    with open_house(tmp_path) as opened:
        yield opened


def test_no_run_is_requested_without_unflushed_deltas(house):
    house.engine.gateway("nyc")
    assert house.tick().skip_message == "nothing is due: nothing waits"


def test_few_recent_deltas_are_not_due(house, monkeypatch):
    monkeypatch.setattr(OffsetClock, "now_ms", lambda _: house.clock())  # the clock is stopped
    house.push()
    house.clock.set(NOON + 29_000)
    message = house.tick().skip_message
    assert "deltas wait" in message
    assert "the oldest for 29 s; a gateway's are flushed from 10,000 bytes or 30 s on" in message


def test_the_age_of_deltas_is_measured_by_the_servers_clock(house):
    house.push()
    house.clock.set(NOON + 30_100)
    assert house.reason() == "age"


def test_deltas_from_before_a_clock_reset_are_due(house):
    house.push()
    house.clock.set(NOON - 3_600_000)
    assert house.reason() == "age"


def test_a_push_that_arrived_just_before_the_midnight_of_its_commit_belongs_to_a_day():
    waiting = Backlog("nyc", "main", 1, 0, 1, start_of(NOON) - 256, 1, 1, oldest_ms=NOON, flush_requested_ms=None)
    found = due_flush([waiting], NOON + 60_000, {"nyc": "age"})
    assert found.first_ms <= found.last_ms


def test_a_flush_is_due_by_bytes(house):
    import random

    random.seed(7)
    noise = "".join(chr(random.randrange(0x20, 0x7F)) for _ in range(20_000))
    delta = extract_delta(None, {"carrier": noise}, table="flights", row_id="1", client_id="ua", hlc=NOON << 16)
    house.engine.gateway("nyc").handle_push(SyncPush("ua", (delta,)))
    assert house.reason() == "bytes"


def test_a_flush_request_is_due_immediately(house):
    house.push()
    house.engine.gateway("nyc").request_flush()
    assert house.reason() == "request"


def test_one_run_covers_all_gateways_and_days_with_unflushed_deltas(house):
    house.push("nyc")
    house.clock.set(NOON + 86_400_000)
    house.push("ewr")
    request = house.asked()
    assert request.run_key is None
    assert request.partition_key_range == dg.PartitionKeyRange(DAY, "2026-03-02")
    assert request.tags[REQUESTED_BY] == FLUSH_SENSOR


def test_days_outside_the_partitions_count_to_the_first_or_last(house):
    house.clock.set(NOON - 365 * 86_400_000)
    house.push()
    house.clock.set(int(time.time() * 1000) + 3 * 86_400_000)
    house.push("ewr")
    asked = house.asked().partition_key_range
    assert asked == dg.PartitionKeyRange("2026-02-01", DAYS.get_last_partition_key())


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED])
def test_no_run_is_requested_while_a_flush_runs(house, status):
    house.push()
    house.engine.gateway("nyc").request_flush()
    house.run(status)
    assert house.tick().skip_message == "a flush is under way"


def test_a_manually_started_run_does_not_delay_the_sensor(house):
    house.push()
    house.engine.gateway("nyc").request_flush()
    house.run(dg.DagsterRunStatus.STARTED, {"team": "ops"})
    assert house.reason() == "request"


def test_a_part_whose_mark_does_not_move_is_requested_again_with_backoff(house, monkeypatch):
    monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 3600)
    house.push()
    house.engine.gateway("nyc").request_flush()
    first = house.tick()
    assert first.run_requests
    message = house.tick(first.cursor).skip_message
    assert message.startswith("deltas/main/nyc was requested once and is still behind; the next request is in ")
    monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 0)
    again = house.tick(first.cursor)
    assert again.run_requests
    assert again.cursor != first.cursor
    monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 3600)
    assert "was requested 2 times" in house.tick(again.cursor).skip_message


def test_backoff_is_below_a_minute_for_an_hour_and_longer_afterwards():
    pauses = [attempts.pause_after(count) for count in range(1, 93)]
    assert pauses == [5, 10, 20, *[40] * 87, 300, 300]
    assert 3_400 < sum(pauses[:90]) < 3_600


def test_a_moved_mark_ends_the_backoff(house):
    house.push()
    house.engine.gateway("nyc").request_flush()
    first = house.tick()
    store = house.engine.store
    batch = store.plan("nyc", "main", 10)
    store.confirm(batch.batch_id, batch.deltas, store.ledger("nyc")[0].id_sum)
    house.clock.set(NOON + 1)
    house.push()
    house.engine.gateway("nyc").request_flush()
    assert house.tick(first.cursor).run_requests


def test_a_failing_gateway_does_not_delay_another(house, monkeypatch):
    monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 3600)
    house.push("nyc")
    house.engine.gateway("nyc").request_flush()
    first = house.tick()
    house.push("ewr")
    assert "deltas/main/nyc was requested once" in house.tick(first.cursor).skip_message
    house.engine.gateway("ewr").request_flush()
    assert house.tick(first.cursor).run_requests


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED])
def test_the_outcome_of_the_last_run_does_not_affect_the_sensor(house, status):
    house.run(status)
    assert house.tick().skip_message.startswith("nothing is due")
    house.push()
    house.engine.gateway("nyc").request_flush()
    assert house.reason() == "request"


def test_a_run_that_does_not_start_is_reported_although_nothing_is_behind(house, monkeypatch):
    def reported():
        assert isinstance(house.tick(), dg.SkipReason)
        return [each.run_id for each in report_in(house.engine.store.marks()).queued]

    monkeypatch.setattr(lags, "READ_SECONDS", 0)
    assert reported() == []
    run = house.run(dg.DagsterRunStatus.NOT_STARTED, {"team": "ops"})
    monkeypatch.setattr(lags, "QUEUED_SECONDS", 0)
    assert reported() == [], "runs are listed every 20 seconds"
    monkeypatch.setattr(lags, "LIST_SECONDS", 0)
    assert reported() == [run.run_id]
    house.instance.report_run_canceled(run)
    assert reported() == []


def test_an_unreadable_sensor_cursor_is_ignored(house):
    house.push()
    house.engine.gateway("nyc").request_flush()
    assert house.tick('{"nyc/main/1": 7}').run_requests


def test_a_checkpoint_is_due_after_a_change_of_rules(house, monkeypatch):
    """A new checkpoint is due although no client pushes and no row changes."""
    monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 3600)
    gateway, store = house.engine.gateway("nyc"), house.engine.store
    nothing = {"version": 1, "buckets": [{"name": "none", "tables": ["absent"], "filters": []}]}
    gateway.set_rules(parse_rules(nothing))
    assert house.tick().skip_message.startswith("nothing is due"), "no checkpoint exists that could be renewed"
    held = store.cut_point("nyc")
    assert store.publish_checkpoint(Checkpoint("nyc", held.epoch, held.arrival, held.rules_version, (), NOON))
    assert house.tick().skip_message.startswith("nothing is due")
    gateway.set_rules(parse_rules({**nothing, "version": 2}))
    asked = house.tick()
    assert asked.run_requests[0].tags[REASON] == "rules"
    assert house.tick(asked.cursor).skip_message.startswith("checkpoint/nyc was requested once"), (
        "if a run made no checkpoint, it is requested again after a pause"
    )
    held = store.cut_point("nyc")
    assert store.publish_checkpoint(Checkpoint("nyc", held.epoch, held.arrival, held.rules_version, (), NOON))
    assert house.tick(asked.cursor).skip_message.startswith("nothing is due")


def test_an_outage_of_staging_skips_the_ticks_of_every_sensor(house, monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setattr(RemoteStore, "__init__", partialmethod(RemoteStore.__init__, retry_seconds=0.1))
    config = house.config.replace(gateway={"url": f"http://127.0.0.1:{port}"}, service_token=SecretStr("s" * 32))
    skipped = set()
    for sensor in make_definitions(config, SchemaSnapshot((FLIGHTS,), {"flights": ("nyc",)})).sensors:
        with dg.build_sensor_context(house.instance) as context:
            tick = sensor(context)
        if "did not answer" in str(tick.skip_message):
            skipped.add(sensor.name)
    assert skipped >= {"flush_sensor", "schema_sensor", "erasure_sensor", "freshness_sensor"}


def test_a_flush_is_due_by_table_budget_and_wide_rows(house, monkeypatch):
    """The byte thresholds are 10,000; a budget of 300 and a width of two columns are far below them."""
    monkeypatch.setattr(OffsetClock, "now_ms", lambda _: house.clock())  # the clock is stopped
    limits = {"max_bytes": 10_000, "max_table_bytes": 300, "wide_row_columns": 2, "wide_row_reduction": 0.99}
    house.push()
    assert house.tick().skip_message.startswith("nothing is due")
    house.watch(house.config.replace(flush={**limits, "wide_row_columns": None}))
    assert house.tick().skip_message.startswith("nothing is due")
    house.push(rows=30)
    assert house.reason() == "table"
    house.watch(house.config.replace(flush={**limits, "max_table_bytes": None}))
    assert house.tick().skip_message.startswith("nothing is due")
    house.wide()
    assert house.reason() == "wide"
