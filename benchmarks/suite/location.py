"""Processor and wall seconds of loading the Dagster code location (`lakesync_dagster.definitions`) in a new process."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks.suite import Benchmark


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--rounds", type=int, default=3, help="processes to start, one after another")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures. The first process may read its files from disk."""
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


BENCHMARKS = (Benchmark("location", __doc__, arguments, run),)
