"""The pipeline of a real `lakesync up`: flushes, backfills, killed processes, and shutdown."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import jwt
import psutil
import pytest
import requests
from pyspark.sql.functions import lit

from lakehouse.sessions import session
from lakehouse.table_access import open_table
from lakesync.cli.up.services import MARKER
from lakesync.config import load
from lakesync.model.delta import extract_delta
from lakesync.wire import json as wire_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

READY_SECONDS = 300
RUN_SECONDS = 300
HEALED_SECONDS = 60
"""Seconds within which everything is up to date again after a failed run."""
COMMAND = [sys.executable, "-c", "from lakesync.cli import main; main()", "up"]
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
MATERIALISED = """query Materialised($key: AssetKeyInput!, $days: [String!]) {
  assetOrError(assetKey: $key) { ... on Asset { assetMaterializations(partitions: $days) { partition runId } } }
}"""
EVENTS = """query Events($run: ID!) {
  logsForRun(runId: $run) { ... on EventConnection { events {
    ... on MessageEvent { message } ... on ExecutionStepFailureEvent { error { message cause { message } } }
  } } }
}"""


class System:
    """A running `lakesync up`."""

    def __init__(self, data, process):
        self.data, self.process = data, process
        self.session = requests.Session()
        self.session.trust_env = False

    @property
    def report(self):
        try:
            return json.loads((self.data / "up.json").read_text())
        except FileNotFoundError:
            return {}

    def until(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.process.poll() is None, (self.data / "up.log").read_text()
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
            time.sleep(1)  # each query costs CPU time of Dagster
        return found

    def end(self):
        """Stop it; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(240)

    def family(self):
        """The names of the processes that use the folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARKER) == str(self.data):
                    found.append(process.name())
        return found

    def call(self, path, body, role="client", method="POST"):
        claims = {"sub": "ua", "gw": GATEWAY, "role": role, "exp": int(time.time()) + 3600}
        token = jwt.encode(claims, self.report["jwt_secret"], algorithm="HS256")
        url = self.report["gateway"]["url"] + path.format(gw=GATEWAY)
        headers = {"Authorization": f"Bearer {token}"}
        answer = self.session.request(method, url, json=body, headers=headers, timeout=60)
        assert answer.ok, answer.text
        return answer.json()

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
        url = f"{self.report['dagster']['url']}/graphql"
        answer = self.session.post(url, json={"query": query, "variables": variables}, timeout=60).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def runs(self, **tags):
        wanted = [{"key": f"lakesync/{key}", "value": value} for key, value in tags.items()]
        return self.ask(RUNS, tags=wanted)["runsOrError"]["results"]

    def ended(self, wanted, status="SUCCESS"):
        def done():
            runs = [run for run in self.runs() if wanted(run)]
            return runs if runs and all(run["status"] in {"SUCCESS", "FAILURE"} for run in runs) else None

        runs = self.until(done, RUN_SECONDS, "a run to end")
        assert all(run["status"] == status for run in runs), [self.faults(run) or run for run in runs]
        return runs

    def faults(self, run):
        """The errors of a run's failed steps."""
        return [event["error"] for event in self.events(run["runId"]) if event.get("error")]

    def events(self, run_id):
        return self.ask(EVENTS, run=run_id)["logsForRun"]["events"]

    def begun(self, wanted):
        """Wait until one of the expected runs has started; return it and the process of its steps."""

        def found():
            runs = [run for run in self.runs() if wanted(run) and run["status"] == "STARTED"]
            events = self.events(runs[0]["runId"]) if runs else []
            pids = [re.search(r"in process \(pid: (\d+)\)", event.get("message") or "") for event in events]
            return next(((runs[0]["runId"], int(pid[1])) for pid in pids if pid), None)

        return self.until(found, RUN_SECONDS, "a run to begin")

    def is_flushed(self):
        """Whether staging has confirmed every delta."""
        return self.call("/admin/metrics/{gw}?clients=0", None, "admin", "GET")["oldestMs"] is None

    def more_rows(self):
        """Ids of ten new flights."""
        count = self.numbers("checkpoint")["dagster/row_count"]
        return range(count, count + 10)

    def healed(self, rows):
        """Wait until the checkpoint has these rows too, without a push or a request; return the seconds."""
        begun = time.monotonic()
        newest = self.numbers
        self.until(lambda: newest("checkpoint")["dagster/row_count"] == rows.stop, RUN_SECONDS, "the checkpoint")
        return time.monotonic() - begun

    def newer(self, wanted=lambda _: True):
        """Return a condition that is true for a run of the flush sensor that does not exist yet."""
        known = {run["runId"] for run in self.runs()}
        flushes = "flush_sensor"
        return lambda run: run["runId"] not in known and tag(run, "lakesync/requested_by") == flushes and wanted(run)

    def materialised(self, *path, days=None):
        """The run that last materialised each of these partitions; without days, the last run, under None."""
        found = self.ask(MATERIALISED, key={"path": path}, days=days)["assetOrError"]["assetMaterializations"]
        newest = {}
        for each in found:
            newest.setdefault(each["partition"] if days else None, each["runId"])
        return newest

    def lake(self):
        """A session for changes to the lake that bypass LakeSync."""
        spark = {name: self.report["spark"][name] for name in ("remote", "token")}
        return session(load({"data_dir": self.data, "spark": spark}))

    def assets(self):
        return {"/".join(node["assetKey"]["path"]) for node in self.ask(ASSETS)["assetNodes"]}

    def numbers(self, *path):
        (newest,) = self.ask(NEWEST, key={"path": path})["assetOrError"]["assetMaterializations"]
        return {entry["label"]: entry.get("intValue") for entry in newest["metadataEntries"]}

    def checks(self, *path):
        found = self.ask(CHECKS, key={"path": path})["assetNodeOrError"]["assetChecksOrError"]["checks"]
        newest = {check["name"]: check["executionForLatestMaterialization"] for check in found}
        return {name: execution["status"] for name, execution in newest.items() if execution is not None}

    def holds(self, table):
        return self.until(lambda: f"tables/{table}" in self.assets(), READY_SECONDS, f"{table} to be in Dagster")


def tag(run, name):
    return next((each["value"] for each in run["tags"] if each["key"] == name), None)


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    data = tmp_path_factory.mktemp("up")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAKESYNC_", "DAGSTER_"))}
    ports = ["--port", "0", "--dagster-port", "0"]
    with (data / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "--data", str(data), *ports],
            env={**clean, "LAKESYNC_CONFIG": "", "LAKESYNC_FLUSH_MAX_AGE_SECONDS": "600"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    system = System(data, process)
    try:
        system.until(lambda: system.report.get("ready"), READY_SECONDS, "lakesync up")
        yield system
    finally:
        system.end()


def test_a_table_registered_while_it_runs_is_in_dagster_soon_from_the_same_code_server(system):
    before = system.report["code_server"]["pid"]
    assert "tables/flights" not in system.assets()
    system.register("flights", carrier="string", delay="number")
    system.holds("flights")
    assert system.report["code_server"]["pid"] == before


def test_a_push_reaches_deltas_tables_and_checkpoint_by_the_flush_sensor(system):
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
    assert {"deltas", "tables__flights", "checkpoint_snapshots"} <= steps.keys()
    assert system.numbers("deltas")["deltas_in"] == 100
    assert system.numbers("tables", "flights")["rows_merged"] == 100
    assert system.numbers("checkpoint")["dagster/row_count"] == 100
    held = {**system.checks("deltas"), **system.checks("tables", "flights"), **system.checks("checkpoint")}
    assert {name for name, status in held.items() if status == "SUCCEEDED"} >= {
        *("ledger_equals_lake", "delta_once", "no_future_hlc"),
        *("row_once", "state_equals_merge", "checkpoint_equals_snapshots"),
    }


@pytest.fixture
def carried(system):
    """The system with the flights in the lake, from whichever test flushed them."""
    if "tables/flights" not in system.assets():
        test_a_push_reaches_deltas_tables_and_checkpoint_by_the_flush_sensor(system)
    return system


@pytest.mark.deep
@pytest.mark.usefixtures("carried")
def test_a_backfill_of_five_days_is_one_run_with_five_partitions_materialised(system):
    key = {"path": ["tables", "flights"]}
    days = [time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400 * back)) for back in range(5)]
    launched = system.ask(
        BACKFILL,
        params={"assetSelection": [key], "partitionNames": days, "fromFailure": False},
    )["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    (run,) = system.ended(lambda run: tag(run, "dagster/backfill") == launched["backfillId"])
    assert tag(run, "dagster/asset_partition_range_start") == days[-1]
    assert tag(run, "dagster/asset_partition_range_end") == days[0]
    assert system.materialised("tables", "flights", days=days) == dict.fromkeys(days, run["runId"])
    assert system.numbers("tables", "flights")["deltas_in"] == 100


@pytest.mark.deep
@pytest.mark.usefixtures("carried")
def test_a_duplicate_delta_blocks_downstream_assets(system):
    before = system.materialised("checkpoint")
    with system.lake() as spark:
        deltas = spark.table("lake.lakesync.deltas")
        copy = deltas.where("row_id = '7'").withColumn("batch_id", lit("planted"))
        copy.writeTo("lake.lakesync.deltas").append()
    flushed = system.newer()
    system.push("flights", range(5), delay=4)
    system.flush()
    (run,) = system.ended(flushed, "FAILURE")
    steps = {step["stepKey"]: step["status"] for step in run["stepStats"]}
    assert (steps["deltas"], steps["tables__flights"], steps["checkpoint_snapshots"]) == (
        "SUCCESS",
        "SUCCESS",
        "FAILURE",
    )
    checks = system.checks("deltas")
    assert (checks["ledger_equals_lake"], checks["delta_once"]) == ("FAILED", "FAILED")
    assert system.materialised("checkpoint") == before

    with system.lake() as spark:
        spark.sql("DELETE FROM lake.lakesync.deltas WHERE batch_id = 'planted'")


def test_a_killed_run_frees_its_slot_and_the_flush_is_requested_again(system):
    flushed = system.newer()
    system.push("flights", range(5), delay=5)
    system.flush()
    killed, pid = system.begun(flushed)
    os.kill(pid, signal.SIGKILL)
    system.ended(lambda run: run["runId"] == killed, "FAILURE")
    system.ended(lambda run: flushed(run) and run["runId"] != killed)
    assert system.numbers("checkpoint")["dagster/row_count"] == 100


CANCEL = """mutation Cancel($run: String!) { terminateRun(runId: $run) { __typename } }"""


def test_a_cancelled_flush_is_completed_without_a_push_after_the_code_server_returns(carried):
    system, flushed = carried, carried.newer()
    system.push("flights", range(100, 120), delay=7)
    system.flush()

    def carried_to_deltas():
        runs = [run for run in system.runs() if flushed(run)]
        steps = {step["stepKey"]: step["status"] for run in runs for step in run["stepStats"]}
        return runs[0]["runId"] if steps.get("deltas") == "SUCCESS" else None

    run_id = system.until(carried_to_deltas, RUN_SECONDS, "the deltas to be written")
    os.kill(system.report["code_server"]["pid"], signal.SIGKILL)
    system.ask(CANCEL, run=run_id)
    system.until(
        lambda: all(run["status"] in {"SUCCESS", "FAILURE", "CANCELED"} for run in system.runs()),
        RUN_SECONDS,
        "the run to end",
    )
    begun = time.monotonic()
    rows = system.numbers
    system.until(lambda: rows("checkpoint")["dagster/row_count"] == 120, RUN_SECONDS, "the checkpoint to have all rows")
    print(f"up to date again {time.monotonic() - begun:.0f} s after the run ended")


@pytest.mark.deep
def test_a_run_that_is_killed_before_dagster_records_its_batch_is_completed_without_a_push(carried):
    system = carried
    for _ in range(10):  # this moment is shorter than a second
        rows, flushed = system.more_rows(), system.newer()
        system.push("flights", rows, delay=8)
        system.flush()
        run_id, pid = system.begun(flushed)
        process, ends = psutil.Process(pid), time.monotonic() + RUN_SECONDS
        while not system.is_flushed():
            assert time.monotonic() < ends, "the batch is confirmed"
        process.suspend()
        if system.materialised("deltas") == {None: run_id}:
            process.resume()
            system.healed(rows)
            continue
        process.kill()
        break
    else:
        pytest.fail("Dagster recorded every batch before its run could be stopped")
    system.ended(lambda run: run["runId"] == run_id, "FAILURE")
    assert system.materialised("deltas") != {None: run_id}
    assert system.healed(rows) < HEALED_SECONDS


@pytest.mark.deep
def test_rows_that_a_backfill_of_deltas_flushed_reach_table_and_checkpoint_without_a_push(carried):
    system, rows = carried, carried.more_rows()
    system.push("flights", rows, delay=9)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    params = {"assetSelection": [{"path": ["deltas"]}], "partitionNames": [today], "fromFailure": False}
    launched = system.ask(BACKFILL, params=params)["launchPartitionBackfill"]
    (run,) = system.ended(lambda run: tag(run, "dagster/backfill") == launched["backfillId"])
    assert {step["stepKey"] for step in run["stepStats"]} == {"deltas", "checks__deltas", "fresh__deltas"}
    assert system.is_flushed()
    assert system.healed(rows) < HEALED_SECONDS


@pytest.mark.deep
def test_a_failed_table_is_completed_without_a_push_after_its_cause_is_fixed(carried):
    system, rows, flushed = carried, carried.more_rows(), carried.newer()
    with system.lake() as spark, open_table(spark, "lake.tables.flights") as table:
        files = [Path(urlsplit(path).path) for path in table.inspect.files()["file_path"].to_pylist()]
    for file in files:
        file.rename(file.with_suffix(".away"))
    system.push("flights", rows, delay=10)
    system.flush()
    failed = system.until(
        lambda: [run for run in system.runs() if flushed(run) and run["status"] == "FAILURE"], RUN_SECONDS, "a failure"
    )
    assert system.is_flushed()
    assert "table flights was not merged" in json.loads(tag(failed[0], "lakesync/left_out"))
    for file in files:
        file.with_suffix(".away").rename(file)
    assert system.healed(rows) < HEALED_SECONDS


@pytest.mark.deep
def test_a_code_server_without_its_child_is_restarted(system):
    """`tests/unit/cli/test_supervisor.py` tests the same with small processes."""
    dead = system.report["code_server"]["pid"]
    for child in psutil.Process(dead).children():
        child.kill()
    system.until(
        lambda: system.report["ready"] and system.report["code_server"]["pid"] not in {None, dead},
        READY_SECONDS,
        "another code server",
    )
    system.register("reloaded", carrier="string")
    system.holds("reloaded")  # the sensors of the new code server run


def test_a_killed_gateway_is_restarted_a_second_up_is_rejected_and_stopping_leaves_no_process(system):
    dead = system.report["gateway"]["pid"]
    os.kill(dead, signal.SIGKILL)
    system.until(lambda: system.report["gateway"]["pid"] not in {None, dead}, READY_SECONDS, "another gateway")
    system.until(lambda: system.report["ready"], READY_SECONDS, "all to be ready again")
    system.push("flights", range(1), delay=6)

    second = subprocess.run([*COMMAND, "--data", str(system.data)], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"process {system.process.pid}" in second.stderr

    assert len(system.family()) >= 5
    assert system.end() == 0
    assert system.family() == []
    assert system.report == {}
