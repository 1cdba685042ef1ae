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

from examples.flights.client import Connection, token
from examples.flights.data import FIRST_DAY, GATEWAY, RULES, SCHEMAS
from examples.flights.lake import Lake
from examples.flights.workload import push_time
from lakesync import config

READY_SECONDS = 240.0
"""Longest time for a service to become ready."""
STOP_SECONDS = 60.0
"""Longest time for `lakesync up` to end."""
CLOCK_READ_SECONDS = 0.03
"""Seconds until the gateway has read its clock's file again."""
MARKER = "flights-demo"
"""Marks a data folder that the demo created and may empty."""


class SystemFailedError(Exception):
    """`lakesync up` could not be started or stopped, or did not become ready."""


class ServerClock:
    """The file that sets the gateway's clock: it has an offset from real time, so that the clock runs between steps."""

    def __init__(self, path: Path) -> None:
        """Name the file, which `set` creates."""
        self.path = path

    def set(self, milliseconds: int) -> None:
        """Set the gateway's clock, and wait until the gateway has read the file.

        Args:
            milliseconds: the time since 1970, not before the clock's present time.
        """
        draft = self.path.with_suffix(".next")
        draft.write_text(str(milliseconds - time.time_ns() // 1_000_000), "ascii")
        draft.replace(self.path)
        time.sleep(CLOCK_READ_SECONDS)


class System:
    """A data folder, and the processes of `lakesync up` that use it."""

    def __init__(self, data: Path, *, brief: bool = False) -> None:
        """Choose a data folder.

        Args:
            data: the data folder.
            brief: whether Spark runs for a minute or two only; then Java's second compiler would cost more than it
                saves, and is switched off.
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
            self._check_deletable()
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
        """Return the environment variables with the settings of `lakesync up`."""
        return {
            "LAKESYNC_CONFIG": "",
            "LAKESYNC_JWT_SECRET": self.secret,
            "LAKESYNC_SERVICE_TOKEN": self._service,
            "LAKESYNC_SPARK_TOKEN": self._spark,
            "LAKESYNC_CLOCK_OFFSET_FILE": str(self.clock.path),
            "LAKESYNC_GATEWAY_PORT": "0",
            "LAKESYNC_CONNECTORS_ALLOWED_HOSTS": '["127.0.0.1"]',  # for the fake vendors of `connectors.py`
            "LAKESYNC_DAGSTER_PORT": "0",
            "LAKESYNC_DAGSTER_PARTITIONS_START": FIRST_DAY.isoformat(),
            "LAKESYNC_FLUSH_MAX_AGE_SECONDS": "5",
            "JAVA_TOOL_OPTIONS": " ".join(filter(None, (os.environ.get("JAVA_TOOL_OPTIONS"), self._java))),
        }

    def _check_deletable(self) -> None:
        """Raise SystemFailedError if the demo did not create the existing data folder, or a process still uses it."""
        if not (self.data / MARKER).exists():
            raise SystemFailedError(f"{self.data} was not created by the demo and is kept: name another with --data")
        info = self.up_info()
        if info and _is_running(int(info.get("pid", 0))):
            raise SystemFailedError(f"a demo still runs on {self.data}: end process {info['pid']} first")

    def up_info(self) -> dict[str, Any]:
        """Return the content of `up.json`: addresses and process ids by service. Empty before it is written."""
        try:
            info: dict[str, Any] = json.loads((self.data / "up.json").read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return info

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
        self._wait("the gateway", lambda: self._responds("gateway", "/ready"))

    def wait_all(self) -> None:
        """Return once Spark and Dagster are ready too. Raises the errors of `wait_gateway`."""
        self._wait(
            "Spark and Dagster",
            lambda: bool(self.up_info().get("ready")) and self._responds("dagster", "/server_info"),
        )

    def _responds(self, name: str, path: str) -> bool:
        """Return whether a service responds to a GET with success.

        Args:
            name: the service's name in `up.json`.
            path: the path below its address.
        """
        url = self.up_info().get(name, {}).get("url")
        if not url:
            return False
        try:
            return requests.get(f"{url}{path}", timeout=5).ok
        except requests.RequestException:
            return False

    def _wait(self, what: str, is_ready: Callable[[], bool]) -> None:
        """Wait until `is_ready` returns True; `what` names the service in the error. Raises as `wait_gateway`."""
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready():
            if not self.running:
                raise SystemFailedError(f"lakesync up ended before {what} was ready:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                raise SystemFailedError(f"{what} was not ready after {READY_SECONDS:.0f} s:\n{self.last_lines()}")
            time.sleep(0.05)

    def last_lines(self, count: int = 20) -> str:
        """Return the last `count` lines of the output of `lakesync up`."""
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
        # Towers write the times of flights, which the rules show only to carriers.
        admin.send("POST", f"/v1/admin/settings/{GATEWAY}", body=msgspec.json.encode({"writeScope": "any"}))

    def request_flush(self) -> None:
        """Request a flush from the flush sensor."""
        self.admin().send("POST", f"/v1/admin/flush/{GATEWAY}")

    def kill(self, name: str) -> None:
        """Kill a service's process with SIGKILL; `lakesync up` restarts it. `name` is its name in `up.json`."""
        os.kill(int(self.up_info()[name]["pid"]), signal.SIGKILL)

    def stop(self) -> None:
        """Stop all processes as Ctrl-C does.

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


def _is_running(pid: int) -> bool:
    """Return whether a process with this id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
