"""Gateway processes that are killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from lakesync.cli.up.process import free_ports
from lakesync.model.crash_points import VARIABLE
from tests.forked import Forked, gateway
from tests.integration.gateway_support import SECRET, SERVICE, read_log, until


class GatewayProcess:
    """A gateway on one port, in one process after another."""

    def __init__(self, name: str, staging: str, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("LAKESYNC_")},
            "LAKESYNC_CONFIG": "",
            "LAKESYNC_DATA_DIR": str(folder),
            "LAKESYNC_GATEWAY_PORT": str(port),
            "LAKESYNC_JWT_SECRET": SECRET,
            "LAKESYNC_SERVICE_TOKEN": SERVICE,
            "LAKESYNC_STAGING_URL": staging,
        }
        self._process: Forked | None = None
        self.crash_at = ""

    def start(self, crash_at: str = "") -> None:
        """Start it, optionally with a crash point to die at; return when it listens or has died."""
        self._log.write_bytes(b"")
        process = Forked(gateway, environment={**self._environment, VARIABLE: crash_at}, log=self._log)
        self._process, self.crash_at = process, crash_at
        until(
            lambda: process.poll() is not None or any(line["event"] == "listening" for line in read_log(self._log)),
            "the gateway to listen",
        )
        if process.poll() not in (None, -signal.SIGKILL):
            raise RuntimeError(f"the gateway did not start:\n{self._log.read_text()}")

    def kill(self) -> None:
        """Send `kill -9`, unless the process has ended."""
        self._running.kill()
        self._running.wait()

    def dies(self, seconds: float) -> bool:
        """Whether it exits by itself within `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._running.wait(seconds)
        return self._running.poll() is not None

    def stop(self) -> None:
        """Stop it as an operator does.

        Raises:
            RuntimeError: it exited with an error.
        """
        self._running.terminate()
        if self._running.wait(60) != 0:
            raise RuntimeError(f"the gateway ended badly:\n{self._log.read_text()}")

    @property
    def _running(self) -> Forked:
        assert self._process is not None
        return self._process
