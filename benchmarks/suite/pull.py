"""Deltas pulled per second, in pages, by new clients: from a warm store, and from disk after a restart.

`small_rate` is the warm rate with a tenth of the rows stored. It should be equal, because a pull costs what it returns.
A plain implementation (one SQLite row per delta, one commit per push) runs for comparison.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from benchmarks import load, server


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--clients", type=int, default=4, help="clients that pull at once")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--page", type=int, default=1000, help="deltas in a page")
    parser.add_argument("--updates", type=int, default=0, help="deltas that update rows, after their inserts")
    parser.add_argument("--no-baseline", action="store_true", help="leave the plain implementation out")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    few = options.rows // 10

    def pulled(port: int, name: str, clients: int) -> list[load.Sample]:
        wanted = load.PullLoad(name=name, clients=clients, page=options.page)
        return load.apart(load.pull, port, wanted)

    with server.folder(options.folder) as place:
        with server.gateway(place / "gateway") as gateway:
            fill(gateway.port, few)
            pulled(gateway.port, "first", 1)
            gateway.rest()
            small = load.figures(pulled(gateway.port, "small", options.clients))
            fill(gateway.port, options.rows, options.updates)
            pulled(gateway.port, "warming", 1)
            gateway.rest()
            with gateway.measured() as used:
                warm = load.figures(pulled(gateway.port, "warm", options.clients))
            gateway.stop()
        forget(place / "gateway")
        with server.gateway(place / "gateway") as gateway:
            disk = load.figures(pulled(gateway.port, "disk", 1))
        found = warm | load.usage_figures(used[0], warm["deltas"])
        found |= {"disk_rate": disk["rate"], "disk_p99_ms": disk["p99_ms"], "small_rate": small["rate"]}
        if not options.no_baseline:
            with server.plain(place / "plain") as plain:
                fill(plain.port, few)
                baseline = load.figures(pulled(plain.port, "plain", options.clients))
            found |= {"plain_rate": baseline["rate"], "ratio": round(warm["rate"] / baseline["rate"], 2)}
    return found


def fill(port: int, rows: int, updates: int = 0, teams: int = 100) -> None:
    """Push `rows` rows, each inserted once or again, then updates of them."""
    wanted = load.PushLoad(clients=2, rows=rows, batch=1000, deltas=rows + updates, teams=teams, name=f"filler-{rows}")
    load.apart(load.push, port, wanted)


def forget(place: Path) -> None:
    """Drop a stopped server's files from the system's page cache."""
    for file in (place / "data").rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
