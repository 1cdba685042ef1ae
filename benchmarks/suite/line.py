"""The Python client over a simulated phone network: a first sync with and without prefetch, and small syncs.

A relay in front of a real gateway adds a round trip and limits the bandwidth. Each first sync is a new client in a
process of its own; the two kinds alternate, and each figure is the median.
"""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import load, server
from benchmarks.suite.client import _peak_mib
from benchmarks.suite.pull import fill
from lakesync.client import Client, open_client
from lakesync.client.sync import exchange
from lakesync.model.types import SyncPull, SyncResponse

_COLUMNS = (("title", "string"), ("team", "string"), ("done", "boolean"), ("points", "number"))
_SCHEMA = {"table": "tasks", "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS]}


class _NoPrefetching:
    """Requests a page after the previous one is written."""

    def __init__(self, pull: Callable[[SyncPull], SyncResponse], *_: object) -> None:
        self.page = pull

    def stop(self) -> None:
        """Do nothing: no request is pending."""

    cancel = stop


class _Walk(msgspec.Struct):
    """Resource usage of a first sync."""

    seconds: float
    cpu_seconds: float
    peak_mib: int


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--rows", type=int, default=50_000, help="rows of a walk")
    parser.add_argument("--ms", type=float, default=50, help="milliseconds of a round trip")
    parser.add_argument("--mbit", type=float, default=20, help="megabits a second, each way")
    parser.add_argument("--runs", type=int, default=3, help="walks of each kind")
    parser.add_argument("--syncs", type=int, default=100, help="small syncs, of one edit each")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    with server.folder(options.folder) as place, server.gateway(place / "gateway") as gateway:
        fill(gateway.port, options.rows)
        gateway.rest()
        with server.line(place / "line", gateway.port, options.ms, options.mbit) as line:
            walks: dict[bool, list[_Walk]] = {True: [], False: []}
            for number in range(options.runs):
                for ahead in (number % 2 == 0, number % 2 != 0):
                    walks[ahead].append(load.apart(walk, str(place), line.port, options.rows, ahead, number))
            small = load.apart(small_syncs, str(place), line.port, options.syncs)
    found = _told(walks[True], options.rows)
    plain = _told(walks[False], options.rows)
    found |= {f"plain_{name}": value for name, value in plain.items()}
    return found | {"rows": options.rows, "ratio": round(found["rate"] / plain["rate"], 2), **small}


def walk(folder: str, port: int, rows: int, ahead: bool, number: int) -> _Walk:
    """Run a new client's first sync."""
    if not ahead:
        vars(exchange)["Prefetcher"] = _NoPrefetching
    with _client(Path(folder), port, f"walker-{number}-{ahead}") as client:
        begun, cpu = time.perf_counter(), time.process_time()
        client.sync()
        spent = _Walk(time.perf_counter() - begun, time.process_time() - cpu, _peak_mib())
        assert len(client["tasks"]) == rows
    return spent


def small_syncs(folder: str, port: int, syncs: int) -> dict[str, Any]:
    """Measure syncs of an up-to-date client with one edit and with none, in milliseconds."""
    with _client(Path(folder), port, "writer") as client:
        client.sync()
        quiet = sorted(_timed(client) for _ in range(syncs))
        edits: list[float] = []
        for number in range(syncs):
            client["tasks"].insert(title=f"task {number}")
            edits.append(_timed(client))
    edits.sort()
    found: dict[str, Any] = {"syncs": syncs, "quiet_p50_ms": load.percentile(quiet, 50)}
    return found | {f"p{each}_ms": load.percentile(edits, each) for each in (50, 95, 99)}


def _timed(client: Client) -> float:
    begun = time.perf_counter()
    client.sync()
    return (time.perf_counter() - begun) * 1000


def _client(place: Path, port: int, name: str) -> Client:
    url, token = f"http://127.0.0.1:{port}", server.token(name)
    return open_client(place / f"{name}.db", url=url, gateway=server.GATEWAY, token=token, schemas=[_SCHEMA])


def _told(walks: list[_Walk], rows: int) -> dict[str, Any]:
    seconds = statistics.median(walk.seconds for walk in walks)
    cpu = statistics.median(walk.cpu_seconds for walk in walks)
    return {
        "seconds": round(seconds, 2),
        "rate": round(rows / seconds),
        "cpu_us_per_row": round(cpu / rows * 1e6, 1),
        "peak_mib": max(walk.peak_mib for walk in walks),
    }
