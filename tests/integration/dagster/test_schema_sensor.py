"""The schema sensor writes the snapshot and reloads the code location."""

import http.server
import json
import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from lakehouse.schema_snapshot import SchemaSnapshot, read_snapshot, registered, snapshot_file
from lakesync.cli.up.process import free_ports
from lakesync.model.errors import ValidationError
from lakesync.model.schema import parse_schema
from lakesync_dagster.definitions import first_day, make_definitions
from sensors.schema import schema_sensor
from tests.integration.dagster.sensor_support import DAY, FLIGHTS, NOON, open_house


@pytest.fixture
def house(tmp_path):
    with open_house(tmp_path) as opened:
        yield opened


class Webserver(http.server.BaseHTTPRequestHandler):
    """Answers a reload like Dagster's webserver; the end-to-end test uses the real one."""

    server: Any

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body["variables"])
        answer = json.dumps({"data": {"reloadRepositoryLocation": self.server.answer}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


@pytest.fixture
def webserver():
    server: Any = http.server.HTTPServer(("127.0.0.1", 0), Webserver)
    server.asked = []
    server.answer = {
        "__typename": "WorkspaceLocationEntry",
        "locationOrLoadError": {"__typename": "RepositoryLocation"},
    }
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def watch(house, webserver):
    url = f"http://127.0.0.1:{webserver.server_port}"
    config = house.config.replace(dagster={"url": url})

    def tick(loaded):
        with dg.build_sensor_context(house.instance) as context:
            return schema_sensor(config, loaded, lambda: nullcontext(house.engine.store))(context).skip_message

    return tick


def test_a_new_table_is_written_to_the_snapshot_and_the_location_reloaded(house, webserver, watch):
    house.engine.gateway("nyc").register_schema(FLIGHTS)
    assert watch(SchemaSnapshot()) == "loaded again with flights"
    assert webserver.asked == [{"location": "lakesync"}]
    written = read_snapshot(snapshot_file(house.config))
    assert written == SchemaSnapshot((FLIGHTS,), {"flights": ("nyc",)})
    assert watch(written) == "1 tables, none of them new"
    assert len(webserver.asked) == 1


def test_partitions_start_on_the_day_of_the_first_push_unless_configured(house, webserver, watch):
    assert first_day(house.config, SchemaSnapshot()) == f"{datetime.now(UTC):%Y-%m-%d}"
    house.push()
    assert watch(SchemaSnapshot()) == f"loaded again with partitions from {DAY} on"
    written = read_snapshot(snapshot_file(house.config))
    assert first_day(house.config, written) == DAY
    house.clock.set(NOON + 86_400_000)
    house.push(gateway="ewr")
    assert watch(written) == "0 tables, none of them new"
    said = house.config.replace(dagster={"partitions_start": "2026-02-02"})
    assert first_day(said, written) == "2026-02-02"
    later = house.config.replace(dagster={"partitions_start": "9999-01-01"})  # without a day, no run could be requested
    assert first_day(later, written) == f"{datetime.now(UTC):%Y-%m-%d}"


def test_a_connector_registered_at_run_time_becomes_assets_polled_at_its_own_interval(house, webserver, watch):
    gateway = house.engine.gateway("nyc")
    settings = {"projectId": "p", "dataset": "d"}
    orders = {"table": "orders", "query": "SELECT 1", "strategy": {"type": "diff"}}
    for name, interval in (("hourly", 3_600_000), ("often", 30_000)):
        ingest = {"tables": [orders], "intervalMs": interval}
        gateway.register_connector({"name": name, "type": "bigquery", "bigquery": settings, "ingest": ingest})
    assert watch(SchemaSnapshot()) == "loaded again with hourly, often"
    written = read_snapshot(snapshot_file(house.config))
    loaded = make_definitions(house.config, written)
    graph = loaded.resolve_asset_graph()
    for name, interval in (("hourly", 3_600_000), ("often", 30_000)):
        assert graph.get(dg.AssetKey(["ingest", "nyc", name, "orders"])).metadata["every_ms"] == interval
    assert "poll_sensor" in {sensor.name for sensor in loaded.sensors}
    gateway.unregister_connector("hourly")
    watch(written)
    left = make_definitions(house.config, read_snapshot(snapshot_file(house.config))).resolve_asset_graph()
    assert not left.has(dg.AssetKey(["ingest", "nyc", "hourly", "orders"]))
    assert left.has(dg.AssetKey(["ingest", "nyc", "often", "orders"]))


def test_a_failed_reload_is_retried(house, webserver, watch):
    house.engine.gateway("nyc").register_schema(FLIGHTS)
    webserver.answer = {"__typename": "PythonError", "message": "no such module"}
    for _ in range(2):
        with pytest.raises(ValidationError, match="no such module"):
            watch(SchemaSnapshot())
    assert len(webserver.asked) == 2


def test_an_unreachable_webserver_does_not_fail_a_tick(house):
    """Daemon and webserver start together, so a declared table may be new before the webserver answers."""
    house.engine.gateway("nyc").register_schema(FLIGHTS)
    (port,) = free_ports(1)
    config = house.config.replace(dagster={"url": f"http://127.0.0.1:{port}"})
    with dg.build_sensor_context(house.instance) as context:
        tick = schema_sensor(config, SchemaSnapshot(), lambda: nullcontext(house.engine.store))(context)
    assert tick.skip_message.startswith("changed: flights; no Dagster answers at http://127.0.0.1:")
    assert tick.skip_message.endswith(": ConnectionError; the next tick tries again")


def test_a_column_added_later_is_seen(house, webserver, watch):
    house.engine.gateway("nyc").register_schema(FLIGHTS)
    before = registered(house.engine.store)
    columns = [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "number"}]
    house.engine.gateway("nyc").register_schema(parse_schema({"table": "flights", "columns": columns}))
    assert watch(before) == "loaded again with flights"
    assert read_snapshot(snapshot_file(house.config)).tables[0].types == {"carrier": "string", "delay": "number"}
