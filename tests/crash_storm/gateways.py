"""Gateway processes that are killed and started again.

Each is forked from a server process that has imported the gateway once: starting Python and importing takes as long as
everything else of a gateway's short life.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

from lakesync.cli.process import free_ports
from lakesync.crash import VARIABLE
from tests.integration.gateway_support import SECRET, SERVICE, read_log, until

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["gateway.__main__"])


class GatewayProcess:
    """One gateway on one port, in one process after another."""

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
        self._process = _forks.Process(target=_live)
        self.crash_at = ""

    def start(self, crash_at: str = "") -> None:
        """Start it, to die at a crash point where one is named; returns when it listens, or has died already."""
        self._log.write_bytes(b"")
        environment = {**self._environment, VARIABLE: crash_at}
        process = _forks.Process(target=_live, args=(environment, self._log, self._folder), daemon=True)
        process.start()
        self._process, self.crash_at = process, crash_at
        until(
            lambda: process.exitcode is not None or any(line["event"] == "listening" for line in read_log(self._log)),
            "the gateway to listen",
        )
        if process.exitcode not in (None, -signal.SIGKILL):
            raise RuntimeError(f"the gateway did not start:\n{self._log.read_text()}")

    def kill(self) -> None:
        """`kill -9`, unless it is dead already."""
        self._process.kill()
        self._process.join()

    def dies(self, seconds: float) -> bool:
        """Whether it dies by itself within `seconds`."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def stop(self) -> None:
        """End it as an operator does.

        Raises:
            RuntimeError: it did not end well.
        """
        self._process.terminate()
        self._process.join(60)
        if self._process.exitcode != 0:
            raise RuntimeError(f"the gateway ended badly:\n{self._log.read_text()}")


def _live(environment: dict[str, str], log: Path, folder: Path) -> None:
    """What `python -m gateway` does."""
    from gateway.__main__ import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with log.open("ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    sys.exit(main())
