"""The server that is measured, in a process of its own, and what it uses of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import msgspec
import psutil

SECRET = "the secret with which the benchmarks sign their tokens"  # noqa: S105 it guards nothing
GATEWAY = "bench"

_READY_SECONDS = 120
_SAMPLE_SECONDS = 0.2
_MIB = 1 << 20


class Usage(NamedTuple):
    """What a server used between two moments."""

    cpu_seconds: float
    rss_begin_mib: float
    rss_end_mib: float
    rss_peak_mib: float


def token(client: str, **claims: Any) -> str:
    """A token for the gateway `GATEWAY`, good for a day."""
    return jwt.encode(
        {"sub": client, "gw": GATEWAY, "exp": time.time() + 86_400, "role": "admin", **claims}, SECRET, "HS256"
    )


class Server:
    """A running server and the folder that it keeps its data in."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.port = port
        self.folder = folder
        self._process = process
        self._watched = psutil.Process(process.pid)

    @contextmanager
    def measured(self) -> Iterator[list[Usage]]:
        """What the server uses inside of the block; the list holds it at the end."""
        found: list[Usage] = []
        samples = [self._rss()]
        done = threading.Event()

        def sample() -> None:
            while not done.wait(_SAMPLE_SECONDS):
                samples.append(self._rss())

        watcher = threading.Thread(target=sample)
        watcher.start()
        before = self._cpu()
        try:
            yield found
        finally:
            used = self._cpu() - before
            done.set()
            watcher.join()
        samples.append(self._rss())
        found.append(Usage(round(used, 2), samples[0], samples[-1], max(samples)))

    def stored_bytes(self) -> int:
        """Size of everything in the folder, journals included."""
        return sum(file.stat().st_size for file in (self.folder / "data").rglob("*") if file.is_file())

    def stop(self) -> None:
        """End it as an operator does, and wait."""
        self._process.terminate()
        self._process.wait(60)

    def _rss(self) -> float:
        return round(self._watched.memory_info().rss / _MIB, 1)

    def _cpu(self) -> float:
        times = self._watched.cpu_times()
        return float(times.user + times.system)


@contextmanager
def folder(chosen: Path | None) -> Iterator[Path]:
    """Where a benchmark keeps its data while it runs."""
    with tempfile.TemporaryDirectory(prefix="lakesync-bench-", dir=chosen) as made:
        yield Path(made)


@contextmanager
def gateway(place: Path, **variables: str) -> Iterator[Server]:
    """The gateway, durable as ever, with limits that a load generator does not meet.

    Args:
        place: a folder; a gateway that is started again over it finds its data.
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
    """The plain implementation that a ratio is against."""
    with _running(place, "benchmarks.plain", {"BENCH_FOLDER": str(place / "data"), "BENCH_SECRET": SECRET}) as server:
        yield server


@contextmanager
def echo(place: Path) -> Iterator[Server]:
    """The bare fan-out over WebSockets that a ratio is against."""
    with _running(place, "benchmarks.echo", {"BENCH_SECRET": SECRET}) as server:
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
    """The port that the server says it listens on."""
    deadline = time.monotonic() + _READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_bytes().splitlines():
            if b'"listening"' in line and line.endswith(b"}"):
                return int(msgspec.json.decode(line)["url"].rpartition(":")[2])
        time.sleep(0.02)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
