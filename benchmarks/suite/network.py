"""The Python client over a simulated phone network: a first sync with and without prefetch, and small syncs.

A relay in front of a real gateway adds a round trip and limits the bandwidth. Prefetch means that the client requests
the next page while it stores one. Each first sync is a new client in a process of its own; the two kinds alternate, and
each figure is the median. Figures with `plain_` are those without prefetch. `p50_ms` and so on are syncs with one edit,
`quiet_p50_ms` syncs with nothing to send or receive.
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
from benchmarks.suite import Benchmark
from benchmarks.suite.client import peak_mib
from benchmarks.suite.http_load import fill
from lakesync.client import Client, open_client
from lakesync.client.sync import exchange
from lakesync.model.types import SyncPull, SyncResponse

_COLUMNS = (("title", "string"), ("team", "string"), ("done", "boolean"), ("points", "number"))
_SCHEMA = {"table": "tasks", "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS]}


class _NoPrefetch:
    """In place of `Prefetcher`: requests each page when the client asks for it."""

    def __init__(self, pull: Callable[[SyncPull], SyncResponse], *_: object) -> None:
        self.page = pull

    def stop(self) -> None:
        """Do nothing: no request is pending."""

    cancel = stop


class _FirstSync(msgspec.Struct):
    """Resource usage of a first sync."""

    seconds: float
    cpu_seconds: float
    peak_mib: int


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--rows", type=int, default=50_000, help="rows of a first sync")
    parser.add_argument("--ms", type=float, default=50, help="milliseconds of a round trip")
    parser.add_argument("--mbit", type=float, default=20, help="megabits per second in each direction")
    parser.add_argument("--runs", type=int, default=3, help="first syncs of each kind")
    parser.add_argument("--syncs", type=int, default=100, help="small syncs, with one edit each")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    with server.temporary_folder(options.folder) as folder, server.gateway(folder / "gateway") as gateway:
        fill(gateway.port, options.rows)
        gateway.wait_idle()
        with server.slow_network(folder / "relay", gateway.port, options.ms, options.mbit) as relay:
            syncs: dict[bool, list[_FirstSync]] = {True: [], False: []}
            for number in range(options.runs):
                for prefetch in (number % 2 == 0, number % 2 != 0):
                    syncs[prefetch].append(
                        load.run_in_process(first_sync, str(folder), relay.port, options.rows, prefetch, number)
                    )
            small = load.run_in_process(small_syncs, str(folder), relay.port, options.syncs)
    found = _figures(syncs[True], options.rows)
    plain = _figures(syncs[False], options.rows)
    found |= {f"plain_{name}": value for name, value in plain.items()}
    return found | {"rows": options.rows, "ratio": round(found["rate"] / plain["rate"], 2), **small}


def first_sync(folder: str, port: int, rows: int, prefetch: bool, number: int) -> _FirstSync:
    """Run and measure a new client's first sync. It changes this process's client module, so it needs its own process.

    Args:
        folder: folder for the client's database.
        port: the relay's port.
        rows: number of rows that the client must have afterwards.
        prefetch: whether to request the next page while one is stored.
        number: number of the run, part of the client's id.
    """
    if not prefetch:
        vars(exchange)["Prefetcher"] = _NoPrefetch
    with _client(Path(folder), port, f"client-{number}-{prefetch}") as client:
        begun, cpu = time.perf_counter(), time.process_time()
        client.sync()
        spent = _FirstSync(time.perf_counter() - begun, time.process_time() - cpu, peak_mib())
        assert len(client["tasks"]) == rows
    return spent


def small_syncs(folder: str, port: int, syncs: int) -> dict[str, Any]:
    """Measure syncs of an up-to-date client with one edit and with none, in milliseconds.

    Args:
        folder: folder for the client's database.
        port: the relay's port.
        syncs: number of syncs of each kind.
    """
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
    """Return the milliseconds of one sync."""
    begun = time.perf_counter()
    client.sync()
    return (time.perf_counter() - begun) * 1000


def _client(folder: Path, port: int, name: str) -> Client:
    """Open a client of the gateway behind the relay; `name` is its id."""
    url, token = f"http://127.0.0.1:{port}", server.token(name)
    return open_client(folder / f"{name}.db", url=url, gateway=server.GATEWAY, token=token, schemas=[_SCHEMA])


def _figures(syncs: list[_FirstSync], rows: int) -> dict[str, Any]:
    """Return the figures of several first syncs of `rows` rows; times are medians."""
    seconds = statistics.median(sync.seconds for sync in syncs)
    cpu = statistics.median(sync.cpu_seconds for sync in syncs)
    return {
        "seconds": round(seconds, 2),
        "rate": round(rows / seconds),
        "cpu_us_per_row": round(cpu / rows * 1e6, 1),
        "peak_mib": max(sync.peak_mib for sync in syncs),
    }


BENCHMARKS = (Benchmark("network", __doc__, arguments, run),)
