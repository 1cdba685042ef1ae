"""A `lakesync up` with several tenants, tables and destinations; one destination is always unreachable."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import psutil
import requests

from lakesync.cli.up.services import MARKER
from lakesync.model.delta import extract_delta
from lakesync.wire import json as wire_json
from tests.pipeline_storm import poison

READY_SECONDS = 300
BROKEN = "broken"
"""The destination that refuses every connection."""
_AWAY = "postgresql://nobody@127.0.0.1:1/nothing"
_SETTINGS = """\
[flush]
max_age_seconds = 5

[adapters]
copy = "sqlite://{folder}/copy.db"
files = "file://{folder}/files"
broken = "env:BROKEN"

[destinations.copy]
to = "copy"

[destinations.files]
to = "files"

[destinations.broken]
to = "broken"
"""
_RUNS = """query Runs { runsOrError(filter: {statuses: [QUEUED, STARTING, STARTED]}) {
  ... on Runs { results { runId jobName status } } } }"""
_CANCEL = """mutation Cancel($run: String!) { terminateRun(runId: $run) { __typename } }"""
_BACKFILL = """mutation Backfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) { __typename } }"""


class System:
    """The running processes, and the actions of clients and operators."""

    def __init__(self, folder: Path, gateways: int, tables: int, *, poisoned: bool = False) -> None:
        """Start it and register every table with every gateway; `poisoned` prepares the poisoned members."""
        self.folder, self.data = folder, folder / "data"
        self.gateways = [f"tenant-{number}" for number in range(gateways)]
        self.tables = [f"table_{number}" for number in range(tables)]
        self.own_tables: dict[str, list[str]] = {}
        """The tables that only one gateway has, by gateway."""
        settings = _SETTINGS.format(folder=folder) + (poison.SETTINGS if poisoned else "")
        (folder / "lakesync.toml").write_text(settings, "utf-8")
        if poisoned:
            poison.occupy(folder / "copy.db", self.tables[-1])
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAKESYNC_", "DAGSTER_"))}
        with (folder / "up.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", "from lakesync.cli import main; main()", "up"),
                    *("--data", str(self.data), "--port", "0", "--dagster-port", "0"),
                ],
                env={**clean, "LAKESYNC_CONFIG": str(folder / "lakesync.toml"), "BROKEN": _AWAY},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._local = threading.local()
        self.wait(lambda: self.report.get("ready"), READY_SECONDS, "lakesync up")
        for gateway in self.gateways:
            for table in self.tables:
                self.register(gateway, table, [{"name": "number", "type": "number"}])

    def register(self, gateway: str, table: str, columns: list[dict[str, str]]) -> None:
        """Register a table's schema."""
        self.call("POST", f"/admin/schema/{gateway}", {"table": table, "columns": columns}, gateway, "admin")

    def tables_of(self, gateway: str) -> list[str]:
        """The tables that a gateway's clients write."""
        return [*self.tables, *self.own_tables.get(gateway, [])]

    @property
    def report(self) -> dict[str, Any]:
        """The content of `up.json`."""
        with suppress(FileNotFoundError, json.JSONDecodeError):
            found: dict[str, Any] = json.loads((self.data / "up.json").read_text())
            return found
        return {}

    def wait(self, condition: Any, seconds: float, what: str) -> Any:
        """Wait for a condition, with a deadline."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if self.process.poll() is not None:
                raise RuntimeError(f"lakesync up ended: {(self.folder / 'up.log').read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s for {what}")
            time.sleep(0.5)
        return found

    def call(self, method: str, path: str, body: Any, gateway: str, role: str = "client") -> dict[str, Any]:
        """Call the gateway."""
        report = self.report
        claims = {"sub": "writer", "gw": gateway, "role": role, "exp": int(time.time()) + 3600}
        token = jwt.encode(claims, report["jwt_secret"], algorithm="HS256")
        answer = self._session.request(
            method, report["gateway"]["url"] + path, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=30
        )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def push(self, gateway: str, table: str, row: str, number: int) -> None:
        """Push one delta."""
        hlc = (time.time_ns() // 1_000_000) << 16
        delta = extract_delta(None, {"number": number}, table=table, row_id=row, client_id="writer", hlc=hlc)
        assert delta is not None
        deltas = [json.loads(wire_json.encode_delta(delta))]
        body = {"clientId": "writer", "deltas": deltas, "lastSeenHlc": "0"}
        self.call("POST", f"/sync/{gateway}/push", body, gateway)

    def pipeline(self, gateway: str) -> dict[str, Any]:
        """The last report of the pipeline about a gateway, with the unflushed deltas in staging."""
        metrics = self.call("GET", f"/admin/metrics/{gateway}?clients=0", None, gateway, "admin")
        return {
            "oldest_ms": metrics["oldestMs"],
            "checkpoint": metrics["checkpoint"],
            "dead_letters": metrics["deadLetters"],
            **(metrics["pipeline"] or {"reportedMs": 0, "behind": []}),
        }

    def dagster(self, query: str, **variables: Any) -> dict[str, Any]:
        """Query Dagster."""
        url = f"{self.report['dagster']['url']}/graphql"
        answer = self._session.post(url, json={"query": query, "variables": variables}, timeout=60)
        found: dict[str, Any] = answer.json()["data"]
        return found

    @property
    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
        session: requests.Session = self._local.session
        return session

    # -- accidents -------------------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Cancel a run; return whether there was one."""
        runs = self.dagster(_RUNS)["runsOrError"]["results"]
        if runs:
            self.dagster(_CANCEL, run=random.choice(runs)["runId"])
        return bool(runs)

    def kill_run(self) -> bool:
        """Kill the process of a run; return whether there was one."""
        host = psutil.Process(self.report["runs"]["pid"])
        found = host.children()
        if found:
            random.choice(found).send_signal(signal.SIGKILL)
        return bool(found)

    def kill_code_server(self) -> bool:
        """Kill the code server, in which the sensors are evaluated."""
        os.kill(self.report["code_server"]["pid"], signal.SIGKILL)
        return True

    def backfill(self) -> bool:
        """Materialise only today's partition of `deltas`."""
        today = time.strftime("%Y-%m-%d", time.gmtime())
        params = {"assetSelection": [{"path": ["deltas"]}], "partitionNames": [today], "fromFailure": False}
        self.dagster(_BACKFILL, params=params)
        return True

    def end(self) -> None:
        """Stop every process."""
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(120)
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARKER) == str(self.data):
                    process.kill()
