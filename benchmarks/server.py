"""Starts the servers that benchmarks measure, each in a process of its own, and measures their resource usage.

These are the gateway, the minimal servers of `baselines`, and the network simulation of `relay`. The benchmarks in
`benchmarks.suite` call it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import jwt
import msgspec

from benchmarks.usage import MeasuredProcess, Usage
from lakesync.staging.sqlite.write_behind import WriteBehindLimits

SECRET = "the secret with which the benchmarks sign their tokens"  # noqa: S105 it guards nothing
GATEWAY = "bench"
"""The id of the gateway that benchmarks push to and pull from."""

_READY_SECONDS = 120
"""Longest time for a server to start."""


def token(client: str, **claims: Any) -> str:
    """Return a token for the gateway `GATEWAY`, valid for a day."""
    return jwt.encode(
        {"sub": client, "gw": GATEWAY, "exp": time.time() + 86_400, "role": "admin", **claims}, SECRET, "HS256"
    )


class Server:
    """A running server and its data folder."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        """Describe a server that was started.

        Args:
            process: the server's process.
            port: the port on which it listens.
            folder: the folder with its data.
        """
        self.port = port
        self.folder = folder
        self._process = process

    def measure(self) -> AbstractContextManager[list[Usage]]:
        """Measure the server's resource usage during a `with` block; the list contains it after the block."""
        return MeasuredProcess(self._process.pid).measure()

    def wait_idle(self) -> None:
        """Wait until the server is idle and has written what it writes later."""
        MeasuredProcess(self._process.pid).wait_idle(WriteBehindLimits().seconds + 1)

    def stored_bytes(self) -> int:
        """Return the size of the server's data, including journals."""
        return sum(file.stat().st_size for file in (self.folder / "data").rglob("*") if file.is_file())

    def stop(self) -> None:
        """Stop the server with SIGTERM, as an operator does, and wait for its end."""
        self._process.terminate()
        self._process.wait(60)


@contextmanager
def temporary_folder(parent: Path | None) -> Iterator[Path]:
    """Create a folder, and delete it at the end of the block.

    Args:
        parent: the folder in which it is created; None for the system's.
    """
    with tempfile.TemporaryDirectory(prefix="lakesync-bench-", dir=parent) as made:
        yield Path(made)


@contextmanager
def gateway(folder: Path, **variables: str) -> Iterator[Server]:
    """Start the gateway with full durability, and limits that the load generator does not reach.

    Args:
        folder: a folder for the data. A gateway that is started again with it has the data of the first.
        variables: further settings, by the names of their `LAKESYNC_…` variables.
    """
    settings = {
        "LAKESYNC_CONFIG": "",
        "LAKESYNC_DATA_DIR": str(folder / "data"),
        "LAKESYNC_GATEWAY_PORT": "0",
        "LAKESYNC_JWT_SECRET": SECRET,
        "LAKESYNC_LIMITS_REQUESTS_PER_SECOND": "1000000",
        "LAKESYNC_LIMITS_MAX_BACKPRESSURE_BYTES": str(1 << 40),
        **variables,
    }
    with _start(folder, ("gateway",), settings) as server:
        yield server


@contextmanager
def plain(folder: Path) -> Iterator[Server]:
    """Start the minimal sync server of `benchmarks.baselines`, for comparison."""
    variables = {"BENCH_FOLDER": str(folder / "data"), "BENCH_SECRET": SECRET}
    with _start(folder, ("benchmarks.baselines", "plain"), variables) as server:
        yield server


@contextmanager
def echo(folder: Path) -> Iterator[Server]:
    """Start the minimal WebSocket server of `benchmarks.baselines`, for comparison."""
    with _start(folder, ("benchmarks.baselines", "echo"), {"BENCH_SECRET": SECRET}) as server:
        yield server


@contextmanager
def slow_network(folder: Path, to: int, ms: float, mbit: float) -> Iterator[Server]:
    """Start `benchmarks.relay`, which simulates a phone's network in front of a server.

    Args:
        folder: a folder for the relay's log.
        to: the server's port.
        ms: milliseconds of a round trip.
        mbit: megabits per second in each direction.
    """
    variables = {"BENCH_TO": str(to), "BENCH_MS": str(ms), "BENCH_MBIT": str(mbit)}
    with _start(folder, ("benchmarks.relay",), variables) as server:
        yield server


@contextmanager
def _start(folder: Path, command: tuple[str, ...], settings: dict[str, str]) -> Iterator[Server]:
    """Start `python -m COMMAND`, wait until it listens, and stop it at the end of the block.

    Args:
        folder: the server's folder, which gets the log.
        command: the server's module, and its arguments.
        settings: environment variables, beside the inherited ones that are not `LAKESYNC_…`.

    Raises:
        RuntimeError: the server did not start in time.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env={**inherited, **settings}, stdout=stream, stderr=stream
        )
    try:
        yield Server(process, _port(process, log), folder)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until the server's log has the line that it listens, and return the port in this line."""
    deadline = time.monotonic() + _READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_bytes().splitlines():
            if b'"listening"' in line and line.endswith(b"}"):
                return int(msgspec.json.decode(line)["url"].rpartition(":")[2])
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
