"""Benchmarks of the platform around the gateway: an idle `lakesync up`, and loading Dagster's code location."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks import server, up
from benchmarks.suite import Benchmark


def _idle_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idle`."""
    parser.add_argument("--seconds", type=float, default=300, help="seconds of the measurement")
    parser.add_argument(
        "--rest", type=float, default=120, help="idle seconds before the measurement; Spark ends idle workers after 60"
    )
    parser.add_argument("--flushes", type=int, default=1, help="flushes of 1,000 deltas before the idle seconds")


def idle(options: Namespace) -> dict[str, Any]:
    """Processor time and memory of an idle `lakesync up`, in total and by service.

    `cpu_percent` is of one core; `pss_mib` counts pages shared by several processes once.
    """
    with server.temporary_folder(options.folder) as folder:
        return up.idle(folder, options.seconds, options.rest, options.flushes)


def _location_arguments(parser: ArgumentParser) -> None:
    """Add the options of `location`."""
    parser.add_argument("--rounds", type=int, default=3, help="processes to start, one after another")


def location(options: Namespace) -> dict[str, Any]:
    """Processor and wall seconds of loading the Dagster code location in a new process.

    The location is `lakesync_dagster.definitions`. The first process may read its files from disk.
    """
    walls, cpus = [], []
    for _ in range(options.rounds):
        before, begun = _children(), time.perf_counter()
        subprocess.run([sys.executable, "-c", "import lakesync_dagster.definitions"], check=True)
        walls.append(time.perf_counter() - begun)
        cpus.append(_children() - before)
    return {
        "rounds": options.rounds,
        "rate": round(1 / min(walls), 3),
        "first_seconds": round(walls[0], 2),
        "seconds": round(min(walls), 2),
        "cpu_seconds": round(min(cpus), 2),
    }


def _children() -> float:
    """Return the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BENCHMARKS = (
    Benchmark("idle", idle.__doc__, _idle_arguments, idle),
    Benchmark("location", location.__doc__, _location_arguments, location),
)
