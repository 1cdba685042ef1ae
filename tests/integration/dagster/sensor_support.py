"""A staging store with a manual clock and a Dagster instance, for tests of sensors."""

import time
from contextlib import contextmanager, nullcontext

import dagster as dg

from assets.names import FLUSH_SENSOR, REASON, REQUESTED_BY
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.delta import extract_delta
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync.staging import open_store
from lakesync_dagster.definitions import day_partitions
from sensors.lags import PipelineLags
from sensors.staging import flush_sensor
from tests.dagster_instance import dagster_instance

DAY = "2026-03-01"
NOON = 1_772_366_400_000  # milliseconds of that day
DAYS = day_partitions("2026-02-01")
FLIGHTS = parse_schema({"table": "flights", "columns": [{"name": "carrier", "type": "string"}]})


class Clock:
    """The gateway's clock; the sensor reads the same time through the offset file."""

    def __init__(self, file):
        self.file = file
        self.set(NOON)

    def set(self, now_ms):
        self._now_ms = now_ms
        self.file.write_text(str(now_ms - time.time_ns() // 1_000_000))

    def __call__(self):
        return self._now_ms


class House:
    """A staging store, a Dagster instance and the sensors over both."""

    def __init__(self, config, clock, engine, instance):
        self.config, self.clock, self.engine, self.instance = config, clock, engine, instance
        self.watch(config)

    def watch(self, config):
        self.lags = PipelineLags(config, SchemaSnapshot())
        self.sensor = flush_sensor(config, DAYS, lambda: nullcontext(self.engine.store), self.lags)

    def push(self, gateway="nyc", rows=1, width=10):
        deltas = tuple(
            extract_delta(
                None,
                {"carrier": f"{self.clock()}-{row}-".ljust(width, "x")},
                table="flights",
                row_id=f"{row}",
                client_id="ua",
                hlc=self.clock() << 16,
            )
            for row in range(rows)
        )
        self.engine.gateway(gateway).handle_push(SyncPush("ua", deltas))

    def wide(self, columns=100, gateway="nyc"):
        values = {f"c{number}": number for number in range(columns)}
        delta = extract_delta(None, values, table="wide", row_id="1", client_id="ua", hlc=self.clock() << 16)
        self.engine.gateway(gateway).handle_push(SyncPush("ua", (delta,)))

    def tick(self, cursor=None):
        sensor = self.sensor
        with dg.build_sensor_context(self.instance, cursor=cursor) as context:
            return sensor(context)

    def asked(self):
        (request,) = self.tick().run_requests
        return request

    def reason(self):
        return self.asked().tags[REASON]

    def run(self, status, tags=None):
        run = dg.DagsterRun("flush", status=status, tags=tags or {REQUESTED_BY: FLUSH_SENSOR})
        self.instance.add_run(run)
        return run


@contextmanager
def open_house(folder):
    """Open a house with files in a folder; its clock is stopped at noon."""
    offset = folder / "offset"
    clock = Clock(offset)
    config = load({"data_dir": folder, "clock_offset_file": offset, "flush": {"max_bytes": 10_000}})
    engine = Engine(open_store(config.staging.url, clock), clock)
    engine.open()
    with dagster_instance() as instance:
        yield House(config, clock, engine, instance)
    engine.close()
