"""A running LakeSync with the data of a small airport, for the pictures of the docs.

`Scene` pushes data as if days had passed, requests flushes and backfills, and inserts a fault. `dagster_pictures` and
`destinations_picture` use it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jwt
import requests

from lakesync import config
from lakesync.model.delta import extract_delta
from lakesync.testing.servers import serve
from lakesync.testing.servers.jira import JiraApi, JiraSite
from lakesync.wire import json as wire_json

T = TypeVar("T")

GATEWAY = "nyc"
"""The id of the only gateway."""
DAYS = 6
"""Number of days for which there is data, today included."""
DAY_MS = 86_400_000
_WAIT_SECONDS = 900
"""Longest time that `until` waits."""
TABLES: dict[str, dict[str, Any]] = {
    "carriers": {"columns": [{"name": "name", "type": "string"}]},
    "planes": {"columns": [{"name": "model", "type": "string"}, {"name": "seats", "type": "number"}]},
    "flights": {
        "columns": [
            {"name": "carrier", "type": "string", "references": "carriers.row_id"},
            {"name": "tailnum", "type": "string", "references": "planes.row_id"},
            {"name": "delay", "type": "number"},
            {"name": "cancelled", "type": "boolean"},
        ]
    },
}
"""Table → its schema, without the table's name."""
_RUNS = """query Runs($tags: [ExecutionTag!]) {
  runsOrError(filter: {tags: $tags}) { ... on Runs { results { runId status } } }
}"""
_BACKFILL = """mutation Backfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) { ... on LaunchBackfillSuccess { backfillId } }
}"""
_PARTITIONS = """query Partitions($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) { ... on AssetNode { partitionKeys } }
}"""
_BACKFILL_STATUS = """query Backfill($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } }
}"""
_LANDED = """query Landed($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) { ... on AssetNode { assetMaterializations(limit: 1) { runId } } }
}"""

_CHECKS = """{ assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks {
  checks { name executionForLatestMaterialization { status } } } } } }"""


class Scene:
    """A running `lakesync up`, and a client that pushes to it."""

    def __init__(self, data: Path) -> None:
        """Use the system in a folder.

        Args:
            data: the data folder of `lakesync up`.
        """
        self.data = data
        self._session = requests.Session()
        self._session.trust_env = False

    @property
    def up_info(self) -> dict[str, Any]:
        """The content of `up.json`: URLs and secrets of the running `lakesync up`; empty before it starts."""
        try:
            return dict(json.loads((self.data / "up.json").read_text("utf-8")))
        except FileNotFoundError:
            return {}

    @property
    def dagster(self) -> str:
        """URL of Dagster's webserver."""
        return str(self.up_info["dagster"]["url"])

    def set_clock(self, days_back: int) -> None:
        """Set the gateway's clock back by some days."""
        (self.data.parent / "clock-offset").write_text(str(-days_back * DAY_MS), "ascii")

    def register(self) -> None:
        """Register every table, and wait until Dagster has loaded their assets.

        Raises:
            TimeoutError: Dagster has not loaded them in time.
        """
        for table, schema in TABLES.items():
            self._post(f"/admin/schema/{GATEWAY}", {"table": table, **schema}, "admin")
        wanted = {f"tables/{table}" for table in TABLES}
        until(lambda: wanted <= self._assets(), "the tables in Dagster")

    def push_day(self, days_back: int) -> None:
        """Push the data of one day: new flights, and corrections of flights of the day before."""
        rows: list[tuple[str, str, dict[str, Any]]] = [("carriers", "UA", {"name": "United"})]
        for number in range(40):
            row = f"{DAYS - days_back}-{number}"
            flight = {"carrier": "UA", "tailnum": f"N{number}", "delay": number, "cancelled": number == 7}
            rows += [("planes", f"N{number}", {"model": "A320", "seats": 180}), ("flights", row, flight)]
            rows += [("flights", f"{DAYS - days_back - 1}-{number}", {"delay": number + 5})]
        self.push(days_back, rows)

    def push(self, days_back: int, rows: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Push rows with the clock set back.

        Args:
            days_back: days by which the clock is set back.
            rows: `(table, row id, columns)` of each row.
        """
        self.set_clock(days_back)
        time.sleep(0.1)  # the gateway reads the file with its clock's offset every 20 ms
        now = time.time_ns() // 1_000_000 - days_back * DAY_MS
        deltas = [
            extract_delta(None, columns, table=table, row_id=row, client_id="ua", hlc=(now << 16) + number)
            for number, (table, row, columns) in enumerate(rows)
        ]
        encoded = [json.loads(wire_json.encode_delta(delta)) for delta in deltas]
        self._post(f"/sync/{GATEWAY}/push", {"clientId": "ua", "deltas": encoded, "lastSeenHlc": "0"}, "client")

    def flush(self) -> str:
        """Request a flush, wait until its run has ended, and return the run's id. The run may have failed.

        Raises:
            TimeoutError: no run has ended in time.
        """
        tags = [{"key": "lakesync/requested_by", "value": "flush_sensor"}]
        before = {run["runId"] for run in self._runs(tags)}
        self._post(f"/admin/flush/{GATEWAY}", {}, "admin")

        def ended() -> str | None:
            new = [run for run in self._runs(tags) if run["runId"] not in before]
            return next((run["runId"] for run in new if run["status"] in {"SUCCESS", "FAILURE"}), None)

        return until(ended, "the flush")

    def backfill(self, *assets: str) -> str:
        """Run the partitions of the last five days of assets again, and return the backfill's id once it has succeeded.

        All partitions run if the assets are not partitioned by day.

        Args:
            assets: asset keys with the same partitions, such as `tables/planes`.

        Raises:
            TimeoutError: the backfill has not succeeded in time.
        """
        days = [time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400 * back)) for back in range(5)]
        keys = [{"path": asset.split("/")} for asset in assets]
        every = self.query(_PARTITIONS, key=keys[0])["assetNodeOrError"]["partitionKeys"]
        chosen = [key for key in every if any(day in key for day in days)] or every
        params = {"assetSelection": keys, "partitionNames": chosen, "fromFailure": False}
        backfill = str(self.query(_BACKFILL, params=params)["launchPartitionBackfill"]["backfillId"])

        def is_complete() -> bool:
            status = self.query(_BACKFILL_STATUS, id=backfill)["partitionBackfillOrError"]["status"]
            return bool(status == "COMPLETED_SUCCESS")

        until(is_complete, "the backfill")
        return backfill

    @contextmanager
    def polled_connector(self) -> Iterator[list[str]]:
        """Register a connector to a fake Jira site, and yield the keys of its assets after its first poll."""
        site = JiraSite(lambda: time.time_ns() // 1_000_000)
        site.add_project("SUP")
        for number in range(40):
            site.add_issue("SUP", f"Seat {number} does not recline")
        api = JiraApi(site)
        with serve(api) as served:
            account = {"domain": "nyc", "baseUrl": served.url, "email": api.email, "apiToken": api.token}
            settings = {"jira": {**account, "includeComments": False}, "ingest": {"intervalMs": 10_000}}
            self._post(f"/admin/connectors/{GATEWAY}", {"name": "desk", "type": "jira", **settings}, "admin")
            assets = [f"ingest/{GATEWAY}/desk/{table}" for table in ("jira_issues", "jira_projects")]
            until(lambda: set(assets) <= self._assets(), "the connector in Dagster")
            key = {"path": assets[0].split("/")}
            until(lambda: self.query(_LANDED, key=key)["assetNodeOrError"]["assetMaterializations"], "a poll")
            yield assets

    def wait_for_checks(self, *tables: str) -> None:
        """Wait until every check of some tables has a result for the table's latest materialisation.

        Some checks are reported by a sensor, up to a minute later.

        Raises:
            TimeoutError: a check has no result in time.
        """
        wanted = [["tables", table] for table in tables]

        def all_have_results() -> bool:
            nodes = [node for node in self.query(_CHECKS)["assetNodes"] if node["assetKey"]["path"] in wanted]
            checks = [check for node in nodes for check in node["assetChecksOrError"]["checks"]]
            return bool(checks) and all(
                (check["executionForLatestMaterialization"] or {}).get("status") in {"SUCCEEDED", "FAILED"}
                for check in checks
            )

        until(all_have_results, f"the checks of {', '.join(tables)}")

    def duplicate_row(self) -> None:
        """Insert a row of the state table `planes` a second time, which is the fault that a check finds."""
        from lakehouse.sessions import session

        spark = {name: self.up_info["spark"][name] for name in ("remote", "token")}
        settings = config.load({"data_dir": self.data, "spark": spark})
        with session(settings) as opened:
            table = f"`{settings.lake.catalog}`.`{settings.lake.namespace}`.planes"
            opened.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE _row = 'N7'")

    def _assets(self) -> set[str]:
        """Return the keys of all assets, with slashes."""
        nodes = self.query("{ assetNodes { assetKey { path } } }")["assetNodes"]
        return {"/".join(node["assetKey"]["path"]) for node in nodes}

    def _runs(self, tags: list[dict[str, str]]) -> list[dict[str, Any]]:
        """Return id and status of all runs with these tags."""
        return list(self.query(_RUNS, tags=tags)["runsOrError"]["results"])

    def query(self, graphql: str, **variables: Any) -> dict[str, Any]:
        """Run a GraphQL query of Dagster's webserver and return its data.

        Args:
            graphql: the query.
            variables: the query's variables.

        Raises:
            requests.RequestException: the webserver does not respond, or responds with an error.
        """
        body = {"query": graphql, "variables": variables}
        response = self._session.post(f"{self.dagster}/graphql", json=body, timeout=120)
        response.raise_for_status()
        return dict(response.json()["data"])

    def _post(self, path: str, body: dict[str, Any], role: str) -> None:
        """Send a request to the gateway with a new token.

        Args:
            path: the route.
            body: the body, which is sent as JSON.
            role: the role in the token: `client` or `admin`.

        Raises:
            requests.RequestException: the gateway does not respond, or rejects the request.
        """
        claims = {"sub": "ua", "gw": GATEWAY, "role": role, "exp": int(time.time()) + 3600}
        bearer = jwt.encode(claims, self.up_info["jwt_secret"], algorithm="HS256")
        url = self.up_info["gateway"]["url"] + path
        response = self._session.post(url, json=body, headers={"Authorization": f"Bearer {bearer}"}, timeout=120)
        response.raise_for_status()


@contextmanager
def running(data: Path, **variables: str) -> Iterator[Scene]:
    """Yield the system that runs in a folder. If none does, start `lakesync up` and stop it after the block.

    Args:
        data: the data folder.
        variables: further settings for `lakesync up`, by the names of their `LAKESYNC_…` variables.

    Raises:
        TimeoutError: `lakesync up` was not ready in time.
        RuntimeError: `lakesync up` ended before it was ready.
    """
    scene = Scene(data)
    if scene.up_info.get("ready"):
        yield scene
        return
    data.mkdir(parents=True, exist_ok=True)
    scene.set_clock(DAYS - 1)
    settings = {
        "LAKESYNC_CONFIG": "",
        "LAKESYNC_CLOCK_OFFSET_FILE": str(data.parent / "clock-offset"),
        "LAKESYNC_FLUSH_MAX_AGE_SECONDS": "100000",
        "LAKESYNC_DAGSTER_PARTITIONS_START": time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400 * 20)),
        **variables,
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAKESYNC_", "DAGSTER_"))}
    program = "from lakesync.cli import main; main()"
    command = [sys.executable, "-c", program, "up", "--data", str(data), "--port", "0", "--dagster-port", "0"]
    process = subprocess.Popen(command, env={**clean, **settings}, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: process.poll() is not None or bool(scene.up_info.get("ready")), "lakesync up")
        if process.poll() is not None:
            raise RuntimeError(f"`lakesync up` ended with exit code {process.returncode} before it was ready")
        yield scene
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def until(condition: Callable[[], T | None], what: str) -> T:
    """Wait until a function returns a true value, and return this value.

    Args:
        condition: the function, which is called twice a second.
        what: what is waited for, for the error message.

    Raises:
        TimeoutError: it has not returned one within 15 minutes.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_WAIT_SECONDS} s for {what}")
        time.sleep(0.5)
    return value
