"""Processor time and memory of an idle `lakesync up`, in total and by service.

`cpu_percent` is of one core; `pss_mib` counts pages shared by several processes once.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks import server, up


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--seconds", type=float, default=300, help="how long it is watched")
    parser.add_argument("--rest", type=float, default=120, help="seconds before that; Spark ends idle workers after 60")
    parser.add_argument("--flushes", type=int, default=1, help="of 1,000 deltas, before the rest")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    with server.folder(options.folder) as place:
        return up.idle(place, options.seconds, options.rest, options.flushes)
