"""Deltas per second that new clients pull, page by page: from a store in memory, and from disk after a restart.

`small_rate` is the rate with a tenth of the rows stored. It should equal `rate`, because the cost of a pull depends
only on what it returns. `disk_rate` is the rate of one client after a restart with an empty page cache. `plain_rate` is
that of a minimal server (`benchmarks.baselines`) for comparison.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from benchmarks import load, server
from benchmarks.suite import Benchmark


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--clients", type=int, default=4, help="clients that pull at the same time")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--page", type=int, default=1000, help="deltas in a page")
    parser.add_argument("--updates", type=int, default=0, help="deltas that update rows after their inserts")
    parser.add_argument("--no-baseline", action="store_true", help="do not measure the minimal server")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    few = options.rows // 10

    def pull(port: int, name: str, clients: int) -> list[load.Sample]:
        wanted = load.PullLoad(name=name, clients=clients, page=options.page)
        return load.run_in_process(load.pull, port, wanted)

    with server.temporary_folder(options.folder) as folder:
        with server.gateway(folder / "gateway") as gateway:
            fill(gateway.port, few)
            pull(gateway.port, "first", 1)
            gateway.wait_idle()
            small = load.figures(pull(gateway.port, "small", options.clients))
            fill(gateway.port, options.rows, options.updates)
            pull(gateway.port, "warming", 1)
            gateway.wait_idle()
            with gateway.measure() as used:
                warm = load.figures(pull(gateway.port, "warm", options.clients))
            gateway.stop()
        evict_from_cache(folder / "gateway")
        with server.gateway(folder / "gateway") as gateway:
            disk = load.figures(pull(gateway.port, "disk", 1))
        found = warm | load.usage_figures(used[0], warm["deltas"])
        found |= {"disk_rate": disk["rate"], "disk_p99_ms": disk["p99_ms"], "small_rate": small["rate"]}
        if not options.no_baseline:
            with server.plain(folder / "plain") as plain:
                fill(plain.port, few)
                baseline = load.figures(pull(plain.port, "plain", options.clients))
            found |= {"plain_rate": baseline["rate"], "ratio": round(warm["rate"] / baseline["rate"], 2)}
    return found


def fill(port: int, rows: int, updates: int = 0, teams: int = 100) -> None:
    """Push one INSERT for each row, then UPDATEs of the rows.

    Args:
        port: the gateway's port.
        rows: number of rows. Rows of an earlier call with fewer rows are inserted again.
        updates: number of UPDATEs.
        teams: number of distinct values of the column `team`.
    """
    wanted = load.PushLoad(clients=2, rows=rows, batch=1000, deltas=rows + updates, teams=teams, name=f"filler-{rows}")
    load.run_in_process(load.push, port, wanted)


def evict_from_cache(folder: Path) -> None:
    """Remove a stopped server's files from the system's page cache, so that they are read from disk.

    Args:
        folder: the server's folder.
    """
    for file in (folder / "data").rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


BENCHMARKS = (Benchmark("pull", __doc__, arguments, run),)
