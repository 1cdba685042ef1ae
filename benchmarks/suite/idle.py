"""Processor time and memory of an idle `lakesync up`, in total and by service.

`cpu_percent` is of one core; `pss_mib` counts pages shared by several processes once.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks import server, up
from benchmarks.suite import Benchmark


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--seconds", type=float, default=300, help="seconds of the measurement")
    parser.add_argument(
        "--rest", type=float, default=120, help="idle seconds before the measurement; Spark ends idle workers after 60"
    )
    parser.add_argument("--flushes", type=int, default=1, help="flushes of 1,000 deltas before the idle seconds")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    with server.temporary_folder(options.folder) as folder:
        return up.idle(folder, options.seconds, options.rest, options.flushes)


BENCHMARKS = (Benchmark("idle", __doc__, arguments, run),)
