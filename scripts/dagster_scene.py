"""A week of a small airport in a running LakeSync, for pictures: six days of pushes, a backfill, a planted fault."""

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

GATEWAY = "nyc"
DAYS = 6
DAY_MS = 86_400_000
PATIENCE_SECONDS = 900
T = TypeVar("T")
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
    """A running system in a data folder, and a client that pushes into it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._session = requests.Session()
        self._session.trust_env = False

    @property
    def told(self) -> dict[str, Any]:
        """What `lakesync up` says of itself; empty while it does not."""
        try:
            return dict(json.loads((self.data / "up.json").read_text("utf-8")))
        except FileNotFoundError:
            return {}

    @property
    def dagster(self) -> str:
        """The webserver's address."""
        return str(self.told["dagster"]["url"])

    def set_clock(self, days_back: int) -> None:
        """Have the gateway live some days ago."""
        (self.data.parent / "clock-offset").write_text(str(-days_back * DAY_MS), "ascii")

    def register(self) -> None:
        """Register every table and wait until Dagster has its asset."""
        for table, schema in TABLES.items():
            self._post(f"/admin/schema/{GATEWAY}", {"table": table, **schema}, "admin")
        wanted = {f"tables/{table}" for table in TABLES}
        until(lambda: wanted <= self._assets(), "the tables in Dagster")

    def push_day(self, days_back: int) -> None:
        """One day's work: new flights, and corrections of yesterday's."""
        rows: list[tuple[str, str, dict[str, Any]]] = [("carriers", "UA", {"name": "United"})]
        for number in range(40):
            row = f"{DAYS - days_back}-{number}"
            flight = {"carrier": "UA", "tailnum": f"N{number}", "delay": number, "cancelled": number == 7}
            rows += [("planes", f"N{number}", {"model": "A320", "seats": 180}), ("flights", row, flight)]
            rows += [("flights", f"{DAYS - days_back - 1}-{number}", {"delay": number + 5})]
        self.push(days_back, rows)

    def push(self, days_back: int, rows: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Push `(table, row, columns)`, some days ago."""
        self.set_clock(days_back)
        time.sleep(0.1)  # the gateway looks at its clock's file every 20 ms
        now = time.time_ns() // 1_000_000 - days_back * DAY_MS
        deltas = [
            extract_delta(None, columns, table=table, row_id=row, client_id="ua", hlc=(now << 16) + place)
            for place, (table, row, columns) in enumerate(rows)
        ]
        encoded = [json.loads(wire_json.encode_delta(delta)) for delta in deltas]
        self._post(f"/sync/{GATEWAY}/push", {"clientId": "ua", "deltas": encoded, "lastSeenHlc": "0"}, "client")

    def flush(self) -> str:
        """Ask for a flush; its run's id, when it has ended, well or not."""
        tags = [{"key": "lakesync/requested_by", "value": "flush_sensor"}]
        before = {run["runId"] for run in self._runs(tags)}
        self._post(f"/admin/flush/{GATEWAY}", {}, "admin")

        def ended() -> str | None:
            new = [run for run in self._runs(tags) if run["runId"] not in before]
            return next((run["runId"] for run in new if run["status"] in {"SUCCESS", "FAILURE"}), None)

        return until(ended, "the flush")

    def backfill(self, *assets: str) -> str:
        """Make five days of assets of one kind again; the backfill's id, when it is complete.

        Of an asset that has other partitions than days, all of them.
        """
        days = [time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400 * back)) for back in range(5)]
        keys = [{"path": asset.split("/")} for asset in assets]
        every = self.ask(_PARTITIONS, key=keys[0])["assetNodeOrError"]["partitionKeys"]
        chosen = [key for key in every if any(day in key for day in days)] or every
        asked = {"assetSelection": keys, "partitionNames": chosen, "fromFailure": False}
        backfill = str(self.ask(_BACKFILL, params=asked)["launchPartitionBackfill"]["backfillId"])

        def complete() -> bool:
            status = self.ask(_BACKFILL_STATUS, id=backfill)["partitionBackfillOrError"]["status"]
            return bool(status == "COMPLETED_SUCCESS")

        until(complete, "the backfill")
        return backfill

    @contextmanager
    def polled(self) -> Iterator[list[str]]:
        """Register a connector to a Jira site, and yield its assets once issues have landed."""
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
            until(lambda: self.ask(_LANDED, key=key)["assetNodeOrError"]["assetMaterializations"], "a poll")
            yield assets

    def checked(self, *tables: str) -> None:
        """Wait until every check of these tables has been told of what was made last; the sensor is a minute later."""
        wanted = [["tables", table] for table in tables]

        def told() -> bool:
            nodes = [node for node in self.ask(_CHECKS)["assetNodes"] if node["assetKey"]["path"] in wanted]
            checks = [check for node in nodes for check in node["assetChecksOrError"]["checks"]]
            return bool(checks) and all(
                (check["executionForLatestMaterialization"] or {}).get("status") in {"SUCCEEDED", "FAILED"}
                for check in checks
            )

        until(told, f"the checks of {', '.join(tables)}")

    def plant(self) -> None:
        """Put a row of `planes` there a second time, behind everybody's back."""
        from lakehouse.sessions import session

        spark = {name: self.told["spark"][name] for name in ("remote", "token")}
        settings = config.load({"data_dir": self.data, "spark": spark})
        with session(settings) as planter:
            table = f"`{settings.lake.catalog}`.`{settings.lake.namespace}`.planes"
            planter.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE _row = 'N7'")

    def _assets(self) -> set[str]:
        nodes = self.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]
        return {"/".join(node["assetKey"]["path"]) for node in nodes}

    def _runs(self, tags: list[dict[str, str]]) -> list[dict[str, Any]]:
        return list(self.ask(_RUNS, tags=tags)["runsOrError"]["results"])

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """What Dagster answers to a query."""
        body = {"query": query, "variables": variables}
        answer = self._session.post(f"{self.dagster}/graphql", json=body, timeout=120)
        answer.raise_for_status()
        return dict(answer.json()["data"])

    def _post(self, path: str, body: dict[str, Any], role: str) -> None:
        claims = {"sub": "ua", "gw": GATEWAY, "role": role, "exp": int(time.time()) + 3600}
        bearer = jwt.encode(claims, self.told["jwt_secret"], algorithm="HS256")
        url = self.told["gateway"]["url"] + path
        answer = self._session.post(url, json=body, headers={"Authorization": f"Bearer {bearer}"}, timeout=120)
        answer.raise_for_status()


@contextmanager
def running(data: Path, **variables: str) -> Iterator[Scene]:
    """The system in a folder: the one that runs there already, else one that is started and ended.

    Args:
        data: the folder.
        variables: further settings of one that is started.
    """
    scene = Scene(data)
    if scene.told.get("ready"):
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
        until(lambda: bool(scene.told.get("ready")), "lakesync up")
        yield scene
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def until(condition: Callable[[], T | None], what: str) -> T:
    """What a condition gives once it is true.

    Raises:
        TimeoutError: it never is.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_SECONDS} s for {what}")
        time.sleep(0.5)
    return found
