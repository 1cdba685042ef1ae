"""The pipeline by `lakesync up`: gateway, Spark, code server, webserver and daemon, all real."""

import json
import os
import signal
import subprocess
import sys
import time

import jwt
import pytest
import requests

from lakesync.delta import extract_delta
from lakesync.wire import json as wire_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

READY_SECONDS = 300
RUN_SECONDS = 300
GATEWAY = "nyc"
RUNS = """query Runs($tags: [ExecutionTag!]) {
  runsOrError(filter: {tags: $tags}) { ... on Runs { results {
    runId jobName status tags { key value } stepStats { stepKey status }
  } } }
}"""
ASSETS = "{ assetNodes { assetKey { path } } }"
NEWEST = """query Newest($key: AssetKeyInput!) {
  assetOrError(assetKey: $key) { ... on Asset { assetMaterializations(limit: 1) { metadataEntries {
    label ... on IntMetadataEntry { intValue }
  } } } }
}"""
CHECKS = """query Checks($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) { ... on AssetNode { assetChecksOrError { ... on AssetChecks { checks {
    name executionForLatestMaterialization { status }
  } } } } }
}"""
BACKFILL = """mutation Backfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""


class System:
    """A running `lakesync up`."""

    def __init__(self, data, process):
        self.data, self.process = data, process
        self.session = requests.Session()
        self.session.trust_env = False

    @property
    def told(self):
        try:
            return json.loads((self.data / "up.json").read_text())
        except FileNotFoundError:
            return {}

    def until(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None, (self.data / "up.log").read_text()
            assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
            time.sleep(0.25)
        return found

    def call(self, path, body, role="client"):
        claims = {"sub": "ua", "gw": GATEWAY, "role": role, "exp": int(time.time()) + 3600}
        token = jwt.encode(claims, self.told["jwt_secret"], algorithm="HS256")
        url = self.told["gateway"]["url"] + path.format(gw=GATEWAY)
        answer = self.session.post(url, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        assert answer.ok, answer.text

    def register(self, table, **columns):
        typed = [{"name": name, "type": kind} for name, kind in columns.items()]
        self.call("/admin/schema/{gw}", {"table": table, "columns": typed}, "admin")

    def push(self, table, rows, **values):
        now = time.time_ns() // 1_000_000
        deltas = [
            extract_delta(None, values, table=table, row_id=f"{row}", client_id="ua", hlc=(now << 16) + row)
            for row in rows
        ]
        body = {"clientId": "ua", "deltas": [json.loads(wire_json.encode_delta(delta)) for delta in deltas]}
        self.call("/sync/{gw}/push", {**body, "lastSeenHlc": "0"})

    def flush(self):
        self.call("/admin/flush/{gw}", {}, "admin")

    def ask(self, query, **variables):
        url = f"{self.told['dagster']['url']}/graphql"
        answer = self.session.post(url, json={"query": query, "variables": variables}, timeout=60).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def runs(self, **tags):
        wanted = [{"key": f"lakesync/{key}", "value": value} for key, value in tags.items()]
        return self.ask(RUNS, tags=wanted)["runsOrError"]["results"]

    def ended(self, wanted):
        def done():
            runs = [run for run in self.runs() if wanted(run)]
            return runs if runs and all(run["status"] in {"SUCCESS", "FAILURE"} for run in runs) else None

        runs = self.until(done, RUN_SECONDS, "a run to end")
        assert all(run["status"] == "SUCCESS" for run in runs), runs
        return runs

    def assets(self):
        return {"/".join(node["assetKey"]["path"]) for node in self.ask(ASSETS)["assetNodes"]}

    def numbers(self, *path):
        (newest,) = self.ask(NEWEST, key={"path": path})["assetOrError"]["assetMaterializations"]
        return {entry["label"]: entry.get("intValue") for entry in newest["metadataEntries"]}

    def checks(self, *path):
        found = self.ask(CHECKS, key={"path": path})["assetNodeOrError"]["assetChecksOrError"]["checks"]
        return {check["name"]: check["executionForLatestMaterialization"]["status"] for check in found}

    def holds(self, table):
        return self.until(lambda: f"tables/{table}" in self.assets(), 90, f"{table} to be in Dagster")


def tag(run, name):
    return next((each["value"] for each in run["tags"] if each["key"] == name), None)


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    data = tmp_path_factory.mktemp("up")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAKESYNC_", "DAGSTER_"))}
    program = "from lakesync.cli import main; main()"
    ports = ["--port", "0", "--dagster-port", "0"]
    with (data / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "up", "--data", str(data), *ports],
            env={**clean, "LAKESYNC_CONFIG": "", "LAKESYNC_FLUSH_AGE_SECONDS": "600"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    system = System(data, process)
    try:
        system.until(lambda: system.told.get("ready"), READY_SECONDS, "lakesync up")
        yield system
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(90)


def test_a_table_registered_while_it_runs_is_in_dagster_within_90_seconds_from_the_same_code_server(system):
    before = system.told["code_server"]["pid"]
    assert "tables/flights" not in system.assets()
    system.register("flights", carrier="string", delay="number")
    system.holds("flights")
    assert system.told["code_server"]["pid"] == before


def test_a_push_goes_by_the_sensor_to_deltas_tables_cut_and_checkpoint(system):
    system.register("flights", carrier="string", delay="number")
    system.holds("flights")
    system.push("flights", range(100), carrier="UA", delay=3)
    system.flush()
    run = system.ended(lambda run: tag(run, "lakesync/requested_by") == "flush_sensor")[0]
    assert run["jobName"] == "flush"
    assert tag(run, "dagster/sensor_name") == "flush_sensor"
    assert tag(run, "lakesync/reason") == "request"
    steps = {step["stepKey"]: step["status"] for step in run["stepStats"]}
    assert set(steps.values()) == {"SUCCESS"}
    assert {"deltas", "tables__flights", "cut"} <= steps.keys()
    assert system.numbers("deltas")["deltas_in"] == 100
    assert system.numbers("tables", "flights")["rows_merged"] == 100
    assert system.numbers("checkpoint")["dagster/row_count"] == 100
    assert system.checks("deltas") == {"ledger_equals_lake": "SUCCEEDED", "delta_once": "SUCCEEDED"}
    assert system.checks("tables", "flights") == {"row_once": "SUCCEEDED"}


def test_a_backfill_of_several_days_is_one_run_with_the_same_rows(system):
    key = {"path": ["tables", "flights"]}
    today = time.strftime("%Y-%m-%d", time.gmtime())
    days = [time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400 * back)) for back in range(3)]
    launched = system.ask(
        BACKFILL,
        params={"assetSelection": [key], "partitionNames": days, "fromFailure": False},
    )["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    runs = system.ended(lambda run: tag(run, "dagster/backfill") == launched["backfillId"])
    assert len(runs) == 1
    assert tag(runs[0], "dagster/asset_partition_range_start") == days[-1]
    assert tag(runs[0], "dagster/asset_partition_range_end") == today
    assert system.numbers("tables", "flights")["deltas_in"] == 100
