"""Starts the measured server in a process of its own, and measures its resource usage."""

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

from benchmarks.usage import Usage, Watched
from lakesync.staging.sqlite.write_behind import WriteBehindLimits

SECRET = "the secret with which the benchmarks sign their tokens"  # noqa: S105 it guards nothing
GATEWAY = "bench"

_READY_SECONDS = 120


def token(client: str, **claims: Any) -> str:
    """Return a token for the gateway `GATEWAY`, valid for a day."""
    return jwt.encode(
        {"sub": client, "gw": GATEWAY, "exp": time.time() + 86_400, "role": "admin", **claims}, SECRET, "HS256"
    )


class Server:
    """A running server and its data folder."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.port = port
        self.folder = folder
        self._process = process

    def measured(self) -> AbstractContextManager[list[Usage]]:
        """Measure the server's resource usage inside the block; the list contains it at the end."""
        return Watched(self._process.pid).measured()

    def rest(self) -> None:
        """Return when the server is idle, after deferred writes."""
        Watched(self._process.pid).rest(WriteBehindLimits().seconds + 1)

    def stored_bytes(self) -> int:
        """Return the size of the folder, including journals."""
        return sum(file.stat().st_size for file in (self.folder / "data").rglob("*") if file.is_file())

    def stop(self) -> None:
        """Stop the server as an operator does, and wait."""
        self._process.terminate()
        self._process.wait(60)


@contextmanager
def folder(chosen: Path | None) -> Iterator[Path]:
    """Create a temporary data folder."""
    with tempfile.TemporaryDirectory(prefix="lakesync-bench-", dir=chosen) as made:
        yield Path(made)


@contextmanager
def gateway(place: Path, **variables: str) -> Iterator[Server]:
    """Start the gateway with full durability, and limits that the load generator does not reach.

    Args:
        place: a folder; a gateway restarted with it finds its data.
        variables: further `LAKESYNC_*` settings.
    """
    settings = {
        "LAKESYNC_CONFIG": "",
        "LAKESYNC_DATA_DIR": str(place / "data"),
        "LAKESYNC_GATEWAY_PORT": "0",
        "LAKESYNC_JWT_SECRET": SECRET,
        "LAKESYNC_LIMITS_REQUESTS_PER_SECOND": "1000000",
        "LAKESYNC_LIMITS_MAX_BACKPRESSURE_BYTES": str(1 << 40),
        **variables,
    }
    with _running(place, "gateway", settings) as server:
        yield server


@contextmanager
def plain(place: Path) -> Iterator[Server]:
    """Start the plain implementation."""
    with _running(place, "benchmarks.plain", {"BENCH_FOLDER": str(place / "data"), "BENCH_SECRET": SECRET}) as server:
        yield server


@contextmanager
def echo(place: Path) -> Iterator[Server]:
    """Start the plain WebSocket fan-out."""
    with _running(place, "benchmarks.echo", {"BENCH_SECRET": SECRET}) as server:
        yield server


@contextmanager
def line(place: Path, to: int, ms: float, mbit: float) -> Iterator[Server]:
    """Start a relay with a round trip in milliseconds and a bandwidth in megabits a second, in front of port `to`."""
    with _running(
        place, "benchmarks.relay", {"BENCH_TO": str(to), "BENCH_MS": str(ms), "BENCH_MBIT": str(mbit)}
    ) as server:
        yield server


@contextmanager
def _running(place: Path, module: str, settings: dict[str, str]) -> Iterator[Server]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
    place.mkdir(parents=True, exist_ok=True)
    log = place / "server.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", module], env={**inherited, **settings}, stdout=stream, stderr=stream
        )
    try:
        yield Server(process, _port(process, log), place)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port that the server prints."""
    deadline = time.monotonic() + _READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_bytes().splitlines():
            if b'"listening"' in line and line.endswith(b"}"):
                return int(msgspec.json.decode(line)["url"].rpartition(":")[2])
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
