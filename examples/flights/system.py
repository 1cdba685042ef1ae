"""The demonstrated system: `lakesync up` as a separate process with its own data folder.

`lakesync up` starts the gateway, Spark and Dagster, and writes their addresses and process ids to a file in the folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import requests

from examples.flights.cast import push_time
from examples.flights.client import Connection, token
from examples.flights.data import FIRST_DAY
from examples.flights.lake import Lake
from examples.flights.play import ServerClock
from examples.flights.schemas import GATEWAY, RULES, SCHEMAS
from lakesync import config

READY_SECONDS = 240.0
STOP_SECONDS = 60.0
MARKER = "flights-demo"
"""Marks a data folder that the demo created and may empty."""


class SystemFailedError(Exception):
    """`lakesync up` could not be started or stopped, or did not become ready."""


class System:
    """One data folder and the processes on it."""

    def __init__(self, data: Path, *, brief: bool = False) -> None:
        """Choose a data folder.

        Args:
            data: the data folder.
            brief: Spark runs for a minute or two only, so Java's second compiler is not worth its time.
        """
        self.data = data.absolute()
        self._java = "-XX:TieredStopAtLevel=1" if brief else ""
        self.secret, self._service, self._spark = (secrets.token_hex(32) for _ in range(3))
        self.clock = ServerClock(self.data / "clock-offset")
        self.lake = Lake(self.data / "catalog.db", self.data / "warehouse")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether `lakesync up` was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id of `lakesync up`."""
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> Path:
        """The output of `lakesync up`."""
        return self.data / "up.log"

    def start(self) -> None:
        """Empty the data folder, set the clock to the first day, and start.

        Raises:
            SystemFailedError: the folder is not the demo's, or a process still uses it.
        """
        if self.data.exists():
            self._check_mine()
            shutil.rmtree(self.data)
        self.data.mkdir(parents=True)
        (self.data / MARKER).touch()
        self.clock.set(push_time(0))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from lakesync.cli import main; main()", "up", "--data", str(self.data)],
                env={**os.environ, **self._variables()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _variables(self) -> dict[str, str]:
        return {
            "LAKESYNC_CONFIG": "",
            "LAKESYNC_JWT_SECRET": self.secret,
            "LAKESYNC_SERVICE_TOKEN": self._service,
            "LAKESYNC_SPARK_TOKEN": self._spark,
            "LAKESYNC_CLOCK_OFFSET_FILE": str(self.clock.path),
            "LAKESYNC_GATEWAY_PORT": "0",
            "LAKESYNC_CONNECTORS_ALLOWED_HOSTS": '["127.0.0.1"]',  # the vendors that the demo makes up
            "LAKESYNC_DAGSTER_PORT": "0",
            "LAKESYNC_DAGSTER_PARTITIONS_START": FIRST_DAY.isoformat(),
            "LAKESYNC_FLUSH_MAX_AGE_SECONDS": "5",
            "JAVA_TOOL_OPTIONS": " ".join(filter(None, (os.environ.get("JAVA_TOOL_OPTIONS"), self._java))),
        }

    def _check_mine(self) -> None:
        if not (self.data / MARKER).exists():
            raise SystemFailedError(f"{self.data} was not made by the demo and is left alone; name another with --data")
        if self.up_info() and _alive(int(self.up_info().get("pid", 0))):
            raise SystemFailedError(f"a demo still runs on {self.data}: end process {self.up_info()['pid']} first")

    def up_info(self) -> dict[str, Any]:
        """Return the content of `up.json`; empty before it is written."""
        try:
            found: dict[str, Any] = json.loads((self.data / "up.json").read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def configuration(self) -> config.Config:
        """Return the configuration with which the pipeline reaches the running system."""
        info = self.up_info()
        return config.load(
            {
                "data_dir": self.data,
                "service_token": self._service,
                "gateway": {"url": info["gateway"]["url"]},
                "spark": {"remote": info["spark"]["remote"], "token": self._spark},
            }
        )

    @property
    def gateway(self) -> str:
        """The gateway's address."""
        return str(self.up_info()["gateway"]["url"])

    @property
    def dagster(self) -> str:
        """The address of Dagster's web pages."""
        return str(self.up_info()["dagster"]["url"])

    def wait_gateway(self) -> None:
        """Return once the gateway is ready.

        Raises:
            SystemFailedError: it is not ready in time, or `lakesync up` ended.
        """
        self._wait("the gateway", lambda: self._serves("gateway", "/ready"))

    def wait_all(self) -> None:
        """Return once Spark and Dagster are ready too. Raises the errors of `wait_gateway`."""
        self._wait(
            "Spark and Dagster", lambda: bool(self.up_info().get("ready")) and self._serves("dagster", "/server_info")
        )

    def _serves(self, name: str, path: str) -> bool:
        url = self.up_info().get(name, {}).get("url")
        if not url:
            return False
        try:
            return requests.get(f"{url}{path}", timeout=5).ok
        except requests.RequestException:
            return False

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not ready():
            if not self.running:
                raise SystemFailedError(f"lakesync up ended before {what} was ready:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                raise SystemFailedError(f"{what} was not ready after {READY_SECONDS:.0f} s:\n{self.last_lines()}")
            time.sleep(0.05)

    def last_lines(self, count: int = 20) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-count:])

    def admin(self) -> Connection:
        """Return an admin's session."""
        return Connection(self.gateway, token(self.secret, "demo-admin", "admin", {}))

    def register(self) -> None:
        """Register the schemas and activate the sync rules."""
        admin = self.admin()
        for schema in SCHEMAS:
            admin.send("POST", f"/v1/admin/schema/{GATEWAY}", body=msgspec.json.encode(schema))
        admin.send("POST", f"/v1/admin/sync-rules/{GATEWAY}", body=msgspec.json.encode(RULES))
        # Towers report times of flights that the rules show to the carrier alone. They may well read them.
        admin.send("POST", f"/v1/admin/settings/{GATEWAY}", body=msgspec.json.encode({"writeScope": "any"}))

    def request_flush(self) -> None:
        """Request a flush from the flush sensor."""
        self.admin().send("POST", f"/v1/admin/flush/{GATEWAY}")

    def kill(self, name: str) -> None:
        """Kill one process with SIGKILL; `lakesync up` restarts it."""
        os.kill(int(self.up_info()[name]["pid"]), signal.SIGKILL)

    def stop(self) -> None:
        """Stop everything like Ctrl-C.

        Raises:
            SystemFailedError: it did not end in time, and was killed.
        """
        if self._process is None or not self.running:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise SystemFailedError(
                f"lakesync up did not end within {STOP_SECONDS:.0f} s:\n{self.last_lines()}"
            ) from None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
